"""The package as a library: a norm in one line, a block from its equation, the loss beside the
logits. What they compute is written out here with torch."""

import inspect
import tomllib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from new_process import run_python
from plugin_folders import write_plugins
from tiny_models import drawn, some_tokens
from torch import nn
from torch.utils.data import DataLoader
from written_out import attention, mlp
from written_out import own_layernorm as centred
from written_out import own_rmsnorm as rms

import transformer_norms
from transformer_norms import Block, ConfigError, build_batches, build_model, compose
from transformer_norms import norms as norms_room
from transformer_norms.config.chosen_files import read_config_file
from transformer_norms.data import Tokens
from transformer_norms.data.tokenizer import ByteTokenizer
from transformer_norms.names import folder_of_configs
from transformer_norms.norms import NORMS, NOT_ARGUMENTS
from transformer_norms.training.loss import CrossEntropy, ModelLoss

WIDTH, HEADS = 16, 2
SIZES = [f"model.width={WIDTH}", f"model.heads={HEADS}", "model.depth=3", "model.context=12"]
CLASSES = {norm.__name__: name for name, norm in NORMS.items() if name != "none"}


def test_the_version_is_that_of_pyproject_and_is_known_without_torch():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["version"]["path"] == "transformer_norms/__init__.py"
    code = "import sys, transformer_norms as t; print(t.__version__, 'torch' in sys.modules)"
    assert run_python(code).split() == [transformer_norms.__version__, "False"]


@pytest.mark.parametrize("name", transformer_norms.__all__)
def test_help_says_what_every_public_name_is(name):
    thing = getattr(transformer_norms, name)
    assert len(thing.__doc__.split(".")[0].split()) >= 4


@pytest.mark.parametrize("name", CLASSES)
def test_a_norm_is_built_in_one_line_with_the_values_of_its_yaml(name):
    kind = CLASSES[name]
    file = read_config_file(folder_of_configs() / "norm" / f"{kind}.yaml")
    stated = {key: value for key, value in file.items() if key not in NOT_ARGUMENTS}
    norm = getattr(norms_room, name)
    arguments = inspect.signature(norm).parameters.items()
    assert {k: one.default for k, one in arguments if k not in ("width", "place")} == stated
    x = 3 * drawn(2, 5, 64)
    assert torch.equal(norm(64).double()(x), NORMS[kind](64, **stated).double()(x))
    assert name in dir(norms_room)


def test_a_norm_that_there_is_not_cannot_be_imported():
    with pytest.raises(ImportError, match="RMSnorm"):
        exec("from transformer_norms.norms import RMSnorm")


HALVED = """
from torch import nn
from transformer_norms.kinds import Number
from transformer_norms.norms import NORMS
@NORMS("halved")
class Halved(nn.Module):
    def __init__(self, width: int, *, share: Number = 0.5) -> None:
        super().__init__()
        self.share = share
    def forward(self, x):
        return self.share * x
"""


def test_a_plugins_norm_may_have_defaults_that_its_yaml_leaves_out(tmp_path):
    stated = "type: halved\nformula: share * x\n"
    files = {"norm/halved": stated, "norm/third": f"{stated}share: 0.25\n"}
    plugins = write_plugins(tmp_path, HALVED, files)
    config = compose([plugins, "norm=halved"])
    assert "share" not in config.norm  # a run of such a config that was saved before has its hash
    x = drawn(2, 64).float()
    assert torch.equal(build_model(config, 11).blocks[0].attention.pre(x), 0.5 * x)
    assert compose([plugins, "norm=third"]).norm.share == 0.25
    assert compose([plugins, "norm=third", "norm.share=0.125"]).norm.share == 0.125
    del NORMS["halved"]


def serial(step):
    return lambda x, a, m: step(step(x, a), m)


def two_streams(x, a, m):
    r = x
    for f in (a, m):
        u = f(x)
        x, r = rms(x + u), r + u
    return x + rms(r)


LEARNED = {"b": {"learn": "scalar", "init": 0.5}}
BLOCKS = [
    ("x + f(norm(x))", {}, serial(lambda x, f: x + f(rms(x)))),
    ("pre", {"norm": nn.LayerNorm}, serial(lambda x, f: x + f(centred(x)))),
    ("norm(sqrt(N) * x + f(x))", {"depth": 9, "index": 4}, serial(lambda x, f: rms(3 * x + f(x)))),
    ({"attention": "x + norm(f(x))", "mlp": "x - layernorm(f(x))"}, {},
     lambda x, a, m: (y := x + rms(a(x))) - centred(m(y))),
    ({"equation": "l * x + b * f(x)", "learned": LEARNED}, {"depth": 3, "index": 2},
     serial(lambda x, f: 3 * x + 0.5 * f(x))),
    ("x + f(x)", {"where": [{"blocks": "i == 1", "equation": "norm(x + f(x))"}], "depth": 2,
                  "index": 1}, serial(lambda x, f: rms(x + f(x)))),
    ("x + attention(h := norm(x)) + mlp(h)", {}, lambda x, a, m: x + a(rms(x)) + m(rms(x))),
    ({"x": "norm(x + f(x))", "r": "r + f(x)", "end": "x + norm(r)"}, {}, two_streams),
]  # fmt: skip


@pytest.mark.parametrize(("equation", "options", "expected"), BLOCKS)
def test_a_block_computes_its_equation(equation, options, expected):
    block = Block(equation, WIDTH, HEADS, **options).double()
    x, f = drawn(2, 7, WIDTH), partial(attention, block.block.attention.f, heads=HEADS)
    y = expected(x, f, partial(mlp, block.block.mlp.f))
    torch.testing.assert_close(block(x), y, rtol=1e-9, atol=1e-9)


def test_the_embedded_tokens_of_an_equation_are_x_unless_given():
    block = Block("x + x0 + f(norm(x))", WIDTH, HEADS, position="none").double()
    x, x0 = drawn(2, 7, WIDTH), drawn(7, WIDTH).expand(2, 7, WIDTH)
    assert torch.equal(block(x), block(x, x))
    assert not torch.equal(block(x), block(x, x0))
    block(x).sum().backward()
    assert all(p.grad is not None for p in block.parameters())


def test_the_weights_of_a_block_are_those_of_the_model_with_that_equation():
    typed = ["placement=ngpt", "init=depth_scaled", "seed=5"]
    model = build_model(compose([*SIZES, *typed]), vocab_size=11)
    block = Block("ngpt", WIDTH, HEADS, depth=3, index=2, settings=typed[1:2], seed=5)
    expected, found = model.blocks[2].state_dict(), block.block.state_dict()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    rows = block.block.attention.f.query.weight.norm(dim=1)
    torch.testing.assert_close(rows, torch.ones(WIDTH))


@pytest.mark.parametrize(
    ("equation", "options", "line"),
    [
        ("x + f(nrm(x))", {}, "there is no norm 'nrm'.*norm"),
        ("sandwhich", {}, "did you mean 'sandwich'. there is no placement 'sandwhich'"),
        ("x + f(x)", {"heads": 3}, "model.heads: 3 heads do not divide model.width, 16"),
        ("x + f(x)", {"norm": "layrnorm"}, "there is no norm 'layrnorm'.*layernorm"),
        ("x + f(x)", {"position": "learned"}, "position=learned is not allowed in a block alone"),
        ("x + f(x)", {"depth": 2, "index": 2}, "index=2: depth=2 has the blocks 0 to 1"),
    ],
)
def test_a_block_that_cannot_be_is_refused_in_one_line(equation, options, line):
    with pytest.raises(ConfigError, match=line) as caught:
        Block(equation, **{"width": WIDTH, "heads": HEADS, **options})
    assert "\n" not in str(caught.value)


def given(*typed):
    """A model, a batch, and the tokens and targets in it."""
    batch = some_tokens(2, 8)
    model = build_model(compose([*SIZES, *typed]), vocab_size=11)
    return model, batch, batch[:, :-1], batch[:, 1:]


def test_targets_give_the_loss_beside_the_logits():
    model, batch, tokens, targets = given("trainer.precision=fp64")
    logits, loss = model(tokens, targets)
    assert torch.equal(logits, model(tokens))
    probabilities = logits.exp() / logits.exp().sum(-1, keepdim=True)
    nats = -probabilities.gather(-1, targets[..., None]).log()
    torch.testing.assert_close(loss, nats.mean(), rtol=1e-13, atol=0)
    ignored = targets.clone()
    ignored[:, ::2] = -100
    torch.testing.assert_close(model(tokens, ignored)[1], nats[:, 1::2].mean(), rtol=1e-13, atol=0)

    trained = ModelLoss(model, CrossEntropy(), device="cpu", precision="fp32")
    torch.testing.assert_close(loss, trained(batch), rtol=1e-14, atol=0)
    gradients = torch.autograd.grad(loss, [*model.parameters()])
    trained.backward(batch, 1)
    found = [p.grad for p in model.parameters()]
    torch.testing.assert_close(found, list(gradients), rtol=1e-10, atol=1e-13)


def test_the_loss_is_float32_where_the_logits_are_not():
    model, _, tokens, targets = given()
    expected = model(tokens, targets)[1]
    logits, loss = model.bfloat16()(tokens, targets)
    assert (logits.dtype, loss.dtype) == (torch.bfloat16, torch.float32)
    assert abs(loss - expected) < 0.05


def test_a_data_loader_reads_the_batches_of_a_run():
    config = compose([*SIZES, "trainer.batch_size=3"])
    words, ids = ByteTokenizer(separated=False), np.arange(300, dtype=np.uint16)
    tokens = Tokens(ids, ids, ids, words, folder=Path(), fingerprint="", facts={})
    batches = build_batches(config, tokens)
    loader = DataLoader(batches, batch_size=3, sampler=range(3 * 20))
    steps = [batches(step) for step in range(20)]  # more than two epochs
    assert torch.equal(torch.stack(list(loader)), torch.stack(steps))
    for rows in steps:
        assert rows.shape == (3, 13)
        assert (rows - rows[:, :1] == torch.arange(13)).all()


def test_schedulers_give_the_rates_of_a_run():
    typed = ["optimizer=muon", "optimizer.lr=0.01", "trainer.steps=10", "schedule.final=0.1"]
    config = compose([*SIZES, *typed, "schedule=linear", "schedule.warmup=3"])
    model = build_model(config, vocab_size=11)
    optimizers = transformer_norms.build_optimizers(config, model)
    assert [type(one).__name__ for one in optimizers] == ["Muon", "AdamW"]
    peaks = [group["lr"] for one in optimizers for group in one.param_groups]
    schedulers = transformer_norms.build_schedulers(config, optimizers)
    for step in range(10):
        decayed = 1 - 0.9 * max(0, step - 3) / 7
        expected = [peak * min(1, (step + 1) / 4) * decayed for peak in peaks]
        rates = [group["lr"] for one in optimizers for group in one.param_groups]
        assert rates == pytest.approx(expected, rel=1e-12)
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            scheduler.step()
