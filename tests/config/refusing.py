"""How tests of refusals compose, and what a refusal is: one line that can be printed."""

import copy
from functools import cache

import pytest

from transformer_norms.config import compose as config
from transformer_norms.errors import ConfigError


@pytest.fixture(scope="module", autouse=True)
def _each_choice_composed_once():
    """Most lines here choose the same files: Hydra's part, the slow one, is done once for each."""
    hydra = config._compose_with_hydra
    once = cache(hydra)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            config, "_compose_with_hydra", lambda g, f: copy.deepcopy(once(tuple(map(str, g)), f))
        )
        yield


def refused(function, *arguments) -> str:
    """The one line with which it was refused."""
    with pytest.raises(ConfigError) as caught:
        function(*arguments)
    line = str(caught.value)
    assert line.isprintable(), line
    return line
