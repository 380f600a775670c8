"""Equations that no paper has: typed, they are computed and trained like those of a file, and in
test_drawings explained and drawn. A typed equation of a paper is that paper's placement."""

import pytest
import torch
from test_block_equations import computes_its_equation, norm_of, randomize
from tiny_models import SIZES, VOCABULARY, some_tokens
from trainers import losses, trainer_of
from typed_equations import EQUATIONS, typed

from transformer_norms.config.building import build_model, build_trainer
from transformer_norms.config.compose import compose
from transformer_norms.config.overrides import as_typed
from transformer_norms.kinds import plain
from transformer_norms.run.identity import run_hash


@pytest.mark.parametrize("name", EQUATIONS)
def test_a_typed_equation_is_computed_and_trained(name):
    keys = EQUATIONS[name]
    config = compose([*SIZES, "init=xavier", "trainer.batch_size=2", *typed(keys)])
    model, fresh = (build_model(config, VOCABULARY) for _ in range(2))
    computes_its_equation(randomize(model), config, norm_of("rmsnorm"))
    batch = some_tokens(2, 7)
    trainer = build_trainer(config, fresh, lambda step: batch, lambda: [batch])
    assert trainer.train_step() is None
    assert trainer.grad_norm > 0
    stated = keys["equation"]
    parts = [stated] if isinstance(stated, str) else list(stated.values())
    assert all(part in config.choices.placement for part in parts)


@pytest.mark.parametrize(
    ("equation", "placement"),
    [("x + norm(f(norm(x)))", "sandwich"), ("x+f( norm(x) )", "pre"), ("x + norm(f(x))", "out")],
)
def test_a_typed_equation_of_a_paper_is_its_placement_bitwise(equation, placement):
    start = ["init=scaled", "architecture.tied=true"]  # out brings another
    chosen = (f"placement={placement}", f"placement.equation={equation}")
    of_file, as_text = (trainer_of(*start, word) for word in chosen)
    assert losses(of_file, 5) == losses(as_text, 5)
    for one, other in zip(of_file.parameters, as_text.parameters, strict=True):
        assert torch.equal(one, other)
    configs = [trainer.model.config for trainer in (of_file, as_text)]
    assert run_hash(configs[0], {}) == run_hash(configs[1], {})
    assert configs[1].choices.placement == equation


WHERE = "[{blocks: i == 0, equation: norm(x + f(x))}]"
PARTS = "{blocks: i == 1, equation: {attention: norm(x + f(x)), mlp: x + f(x)}}"
EACH = {"attention": "norm(x + f(x))", "mlp": "x + f(x)"}


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        (WHERE, [{"blocks": "i == 0", "equation": "norm(x + f(x))"}]),
        (PARTS, [{"blocks": "i == 1", "equation": EACH}]),  # one entry needs no brackets
        ("[]", []),
    ],
)
def test_where_is_typed_without_quotes_as_an_equation_is(text, entries):
    where = (f"placement.where={text}", as_typed("placement.where", entries))
    config, quoted = (compose(["placement.equation=x + f(norm(x))", word]) for word in where)
    assert config == quoted
    assert plain(config.placement.where) == entries
