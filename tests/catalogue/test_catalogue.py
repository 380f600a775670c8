"""Whatever is chosen together composes, builds and trains; what is strange about it is said."""

import pytest
import torch
from combinations import combined, composed, norms_in_turn
from plugin_folders import write_plugins
from tiny_models import VOCABULARY, some_tokens

from transformer_norms.config.building import build_model, build_trainer
from transformer_norms.config.compose import compose
from transformer_norms.config.saved import to_yaml
from transformer_norms.errors import ConfigError
from transformer_norms.names import distinct_norms, options
from transformer_norms.run.identity import run_hash

TINY = ("model=nano", "model.width=16", "model.heads=2", "model.depth=4", "model.context=8")
TINY += ("trainer.batch_size=2", "trainer.steps=10", "trainer.probe_every=0")
NORMS, PLACEMENTS = distinct_norms(), options("placement")
FINALS = ["always", "none", *NORMS]
# Without a norm on the stream its large weights and relu^2 overflow float32 in four blocks.
OVERFLOWS = {"placement": "subln", "norm": "none"}


def trains(precision, *typed, **choices):
    """One optimizer step with finite results."""
    if choices.items() >= OVERFLOWS.items():
        return
    config = combined(*TINY, f"trainer.precision={precision}", *typed, **choices)
    model, batch = build_model(config, VOCABULARY), some_tokens(2, 9)
    trainer = build_trainer(config, model, lambda step: batch, lambda: [batch])
    start = {name: tensor.clone() for name, tensor in model.named_parameters()}
    assert trainer.train_step() is None, choices
    assert torch.tensor(trainer.last_loss).isfinite()
    assert trainer.grad_norm > 0
    for tensor in (*model.parameters(), *model.buffers()):
        assert tensor.isfinite().all()
    assert any(not torch.equal(start[name], p) for name, p in model.named_parameters())
    assert torch.tensor(trainer.evaluate([batch])[0]).isfinite()


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_norm_in_every_placement_trains_a_step(placement):
    """A twelfth of the norms, each time another, in float32 or bfloat16 by turns. Others compute
    their equation or do not look ahead in test_block_equations. All in both, nightly."""
    for number, norm in enumerate(norms_in_turn(placement, 2), PLACEMENTS.index(placement)):
        trains(("fp32", "bf16")[number % 2], norm=norm, placement=placement)


@pytest.mark.parametrize("final_norm", FINALS)
def test_every_final_norm_trains_a_step_behind_a_twentieth_of_the_placements(final_norm):
    """Each time another part; behind all, nightly."""
    norm = "batchnorm" if final_norm == "batchnorm" else "rmsnorm"
    for placement in PLACEMENTS[FINALS.index(final_norm) % 20 :: 20]:
        trains("bf16", norm=norm, placement=placement, final_norm=final_norm)


@pytest.mark.nightly
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("final_norm", ["auto", *FINALS])
def test_all_norms_placements_and_final_norms_train_a_step(norm, final_norm):
    if final_norm == "batchnorm" != norm:
        return  # refused: tests/config/test_config_refusals.py
    for placement in PLACEMENTS:
        for precision in ("fp32", "bf16"):
            trains(precision, norm=norm, placement=placement, final_norm=final_norm)


@pytest.mark.parametrize(
    "placement",
    [
        pytest.param(placement, marks=[pytest.mark.nightly] * (number % 3 > 0))
        for number, placement in enumerate(PLACEMENTS)
    ],
)
def test_each_placement_and_norm_by_the_front_door_is_what_the_short_way_makes(placement):
    """Each with the next norm: there are more placements than norms. Every third, all others
    nightly."""
    norm = NORMS[PLACEMENTS.index(placement) % len(NORMS)]
    chosen = {"placement": placement, "norm": norm}
    assert composed(*TINY, **chosen) == combined(*TINY, **chosen)


AROUND = ("post", "residual_dual", "ngpt")  # a norm before, during and after the blocks
NAMES = {"qk_norm": ["none", "head", "per_head", "full", "l2", "rmsnorm_np"]}
NAMES["embed"] = ["none", "fixnorm", *(name for name in NORMS if name != "batchnorm")]
OTHER_AXES = ["mlp", "position", "attention", "init", "embed", "qk_norm"]


@pytest.mark.parametrize("axis", OTHER_AXES)
@pytest.mark.parametrize("places", [1, pytest.param(len(AROUND), marks=pytest.mark.nightly)])
def test_every_other_choice_trains_a_step(axis, places):
    """With one of three placements, each time another; with each of the three, nightly."""
    around = AROUND[:2] if axis == "qk_norm" else AROUND  # ngpt has its own
    for number, name in enumerate(NAMES.get(axis) or options(axis)):
        for place in range(min(places, len(around))):
            trains("fp32", placement=around[(number + place) % len(around)], **{axis: name})


GATE = "architecture.attention_gate=per_head"


def test_tied_untied_biased_grouped_and_odd_shapes_train_a_step():
    for extra in (
        ("architecture.tied=false", "architecture.bias=true"),
        ("architecture.bias=true", "model.kv_heads=1", "qk_norm=per_head", "v_norm=head"),
        ("model.head_dim=6", "architecture.rope_fraction=0.5", GATE),
        ("model.head_dim=5", "position=none", "qk_norm=full", "model.kv_heads=1"),
        ("model.dropout=0.3", "architecture.attention_cap=20", "architecture.logit_cap=30"),
    ):
        for placement in ("hybrid_star", "normformer", "subln", "ngpt", "parallel"):
            own = placement in ("hybrid_star", "ngpt")
            typed = [text for text in extra if not (own and text.startswith(("qk_norm", "v_norm")))]
            trains("fp32", *typed, placement=placement)


STRANGE = {
    "": [],
    "placement=none": ["reaches the head without"],
    "norm=none": ["the stream reaches the head without"],
    "placement=rezero": ["reaches the head without"],
    "placement=ngpt": [],
    "final_norm=none": ["the stream reaches the head without a norm"],
    "placement=post final_norm=always": [],
    "placement=residual_dual": [],
    "placement=lns init=scaled": ["placement=lns is not verified"],
    "placement=glm130b embed=none": ["init=glm130b is"],
    "placement=siamese norm=none": [
        "reaches the head without",
        "placement=siamese is not verified: ",
    ],
    "norm=gatednorm": ["norm=gatednorm is not verified: how its two matrices start"],
    "init=zero_out placement=out": ["init: output and down start"],
    "init=zero_out placement=ngpt": ["init: output"],
    "norm.bias=true": [],
    "norm.eps=1e-5 optimizer.lr=1e-4": [],
    "trainer.steps=100": ["schedule.warmup=100 is as long as"],
    "schedule=wsd trainer.steps=120": [],
    "position=alibi architecture.rope_base=500": [],
}


@pytest.mark.parametrize("typed", STRANGE)
def test_what_is_strange_is_said_naming_its_key_and_nothing_else_is(typed):
    found, said = compose(["model=nano", *typed.split()]).warnings, STRANGE[typed]
    assert len(found) == len(said), found
    assert all(sum(fragment in line for line in found) == 1 for fragment in said)


LEAKY = """
import torch
from torch import nn
from transformer_norms.kinds import OpenShare
from transformer_norms.norms import NORMS
@NORMS("leaky")
class Leaky(nn.Module):
    def __init__(self, width: int, *, zeta: OpenShare) -> None:
        super().__init__()
        self.zeta = nn.Parameter(torch.full((), zeta))
    def forward(self, x):
        rms = (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return self.zeta * x + (1 - self.zeta) * x / rms
"""


def test_a_norm_with_a_parameter_and_a_placement_are_added_by_two_and_one_file(tmp_path):
    equation = "{attention: norm(x + f(x)), mlp: x + norm(f(norm(x))) / 3}"
    files = {"norm/leaky": "type: leaky\nzeta: 0.1\n"}
    files["placement/thirds"] = f"source: here\nequation: {equation}\n"
    typed = [write_plugins(tmp_path, LEAKY, files), "norm=leaky", "placement=thirds"]
    config = compose([*TINY, *typed, "norm.zeta=0.25", "trainer.precision=fp64"])
    model = build_model(config, VOCABULARY)
    assert sum(name.endswith("zeta") for name, _ in model.named_parameters()) == 3 * 4 + 1
    block, x = model.blocks[0].mlp, torch.randn(2, 8, 16).double()

    def norm(x):
        return 0.25 * x + 0.75 * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    expected = eval(config.placement.equation.mlp, {"x": x, "norm": norm, "f": block.f})
    torch.testing.assert_close(block(x, x, x), expected)
    with pytest.raises(ConfigError, match="did you mean 'norm.zeta'"):
        compose([*TINY, *typed, "norm.zetta=0.1"])


def test_a_norm_for_heads_stands_at_the_head_norm_site_of_a_placement(tmp_path):
    """GroupNorm with a group a head, Wu & He 2018, arXiv:1803.08494, a gain for each channel."""
    text = "source: here\nequation: x + f(x, head_norm=groupnorm_head@per_head)\n"
    plugins = write_plugins(tmp_path, "", {"placement/grouped": text})
    config = compose([*TINY, plugins, "placement=grouped", "trainer.precision=fp64"])
    norm = build_model(config, VOCABULARY).blocks[0].attention.f.head_norm
    gain, bias = torch.randn(2, 2, 8).double()
    for head, of in enumerate(norm.heads):
        of.gain.data, of.bias.data = gain[head], bias[head]
    x = torch.randn(3, 5, 2, 8).double()
    affine = gain.flatten(), bias.flatten()
    grouped = torch.nn.functional.group_norm(x.view(15, 16), 2, *affine, eps=1e-5)
    torch.testing.assert_close(norm(x), grouped.view_as(x))


@pytest.mark.parametrize(
    "typed",
    [
        "placement=ngpt norm=dyt",
        "placement=hybrid_star norm=seednorm",
        "placement=peri norm=batchnorm norm.allow_noncausal=true",
        "init.std.embedding=0.5",
        "init=gpt2 init.stream=0.3",
        "placement=post init.stream=0.3 init.stream_by=scale",
        "norm=dyt norm.bias=false placement=mixln",
        "architecture.bias=[query,key] architecture.rope_base=[100,0,50,9] position=rope_yarn",
    ],
)
def test_a_saved_run_is_the_same_run_again(typed, tmp_path):
    file, config = tmp_path / "config.yaml", compose([*TINY, *typed.split()])
    file.write_text(to_yaml(config))
    again = compose([f"config={file}"])
    assert run_hash(again, {}) == run_hash(config, {})
    assert again.choices.placement == config.choices.placement
    for node in ("init", "architecture", "position"):
        assert getattr(again, node) == getattr(config, node)
