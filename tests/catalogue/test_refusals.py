"""A model that cannot be built is refused in one line that names the key (refusals.yaml)."""

import re
from pathlib import Path

import pytest
import yaml
from refusing import refused

from transformer_norms.config.compose import compose
from transformer_norms.model.placement import Placement

SMALL = ["model=nano", "model.depth=3", "model.context=9", "trainer.device=cpu"]
CASES = yaml.safe_load((Path(__file__).parent / "refusals.yaml").read_text())
ENDLESS = {
    "x + (" * 400: "it cannot be read",
    "x + f(x)" + " + x" * 600: "is not an equation, such as",
}
PLACEMENTS = [(case["keys"], case["said"]) for case in CASES["placements"]]
PLACEMENTS += [({"equation": equation}, said) for equation, said in ENDLESS.items()]


@pytest.mark.parametrize("typed", CASES["typed"])
def test_what_cannot_be_typed_is_one_line(typed):
    words = re.split(r" (?=[\w.]+=)", typed)
    assert CASES["typed"][typed] in refused(compose, [*SMALL, *words])


@pytest.mark.parametrize(("keys", "said"), PLACEMENTS, ids=lambda v: str(v)[:40])
def test_a_placement_that_cannot_be_computed_is_refused_in_one_line(keys, said):
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        Placement(**{"source": "a test", "equation": "x + f(norm(x))", **keys})
    assert "\n" not in str(caught.value)
