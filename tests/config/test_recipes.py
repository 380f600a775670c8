"""Recipes: a published size with its published training, over which what is typed wins."""

import re

import pytest
import torch
import yaml
from plugin_folders import write_plugins

from transformer_norms import train
from transformer_norms.config.building import build_uninitialized
from transformer_norms.config.compose import compose
from transformer_norms.errors import ConfigError
from transformer_norms.explain.__main__ import main as explain
from transformer_norms.kinds import plain
from transformer_norms.names import option_files, options
from transformer_norms.run.identity import run_hash

RECIPES = [name for name in options("recipe") if name != "none"]


def linear(rows: int, columns: int, bias: bool = False) -> int:
    return rows * columns + bias * rows


def gpt2(width: int, depth: int) -> int:
    """Learned positions, biases everywhere, LayerNorm with gain and bias, a tied head."""
    attention = 4 * linear(width, width, True)
    mlp = linear(4 * width, width, True) + linear(width, 4 * width, True)
    return 50257 * width + 1024 * width + depth * (attention + mlp + 4 * width) + 2 * width


def gated(width: int, depth: int, mlp: int, shared: float = 1) -> int:
    """Blocks without biases and norms; `shared` is the share of heads with keys of their own."""
    attention = 2 * linear(width, width) + 2 * linear(round(shared * width), width)
    return depth * (attention + 3 * linear(mlp, width))


def olmo2(width: int, depth: int, mlp: int) -> int:
    """Two norms of a branch, two of queries and keys, embedding and head with padded rows."""
    return gated(width, depth, mlp) + (4 * depth + 1) * width + 2 * 100352 * width


def hybridnorm(width: int, heads: int, mlp: int) -> int:
    """16 blocks, a norm on the stream in each, three inside the heads, a tied head."""
    norms = 16 * (width + 3 * width // heads) + width
    return gated(width, 16, mlp, 1 / 4) + norms + 100278 * width


def llama(width: int, depth: int, mlp: int) -> int:
    """Two norms a block and one at the end, an own head."""
    return gated(width, depth, mlp) + (2 * depth + 1) * width + 2 * 32000 * width


# Parameters by hand, the figure that is published, the rows of the vocabulary, and tokens.
PUBLISHED = {
    "gpt2_124m": (gpt2(768, 12), "124439808", 50257, 295e9),
    "gpt2_355m": (gpt2(1024, 24), "355M", 50257, 300e9),
    "gpt2_774m": (gpt2(1280, 36), "774M", 50257, 300e9),
    "gpt2_1558m": (gpt2(1600, 48), "1558M", 50257, 300e9),
    "olmo2_1b": (olmo2(2048, 16, 8192), "1.5B", 100352, 4e12),
    "olmo2_7b": (olmo2(4096, 32, 11008), "7.3B", 100352, 3.9e12),
    "hybridnorm_550m": (hybridnorm(1536, 16, 4096), "550M", 100278, 400e9),
    "hybridnorm_1200m": (hybridnorm(2048, 32, 9192), "1.277B", 100278, 1e12),
    "mixln_71m": (llama(512, 12, 1368), "71M", 32000, 1.31e9),
    "mixln_130m": (llama(768, 12, 2048), "134M", 32000, 2.62e9),
    "mixln_250m": (llama(768, 24, 2560), "247M", 32000, 5.24e9),
    "mixln_350m": (llama(1024, 24, 2736), "368M", 32000, 7.86e9),
    "mixln_1b": (llama(2048, 24, 5461), "1.3B", 32000, 13.1e9),
}
# Parameters outside embedding and head. The papers' widths of the mlp are not known.
PERI = {
    "peri_400m": (gated(1024, 24, 4096) + 98 * 1024, 400e6),
    "peri_1500m": (gated(2048, 24, 8192, 1 / 2) + 98 * 2048, 1.5e9),
    "peri_3200m": (gated(2560, 32, 10240, 1 / 2) + 130 * 2560, 3.2e9),
}


def parameters(config, vocab_size: int) -> int:
    with torch.device("meta"):
        model = build_uninitialized(config, vocab_size)
    return sum(parameter.numel() for parameter in model.parameters())


def rounded(count: int, figure: str) -> str:
    """The count with as many digits as the figure, in its unit."""
    if figure.isdecimal():
        return str(count)
    places, unit = len(figure[:-1].partition(".")[2]), {"M": 1e6, "B": 1e9}[figure[-1]]
    return f"{count / unit:.{places}f}{figure[-1]}"


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_has_the_parameters_and_the_tokens_that_are_published(recipe):
    config = compose([f"recipe={recipe}"])
    if recipe in PERI:
        by_hand, called = PERI[recipe]
        assert parameters(config, 10) - 2 * 10 * config.model.width == by_hand
        assert by_hand == pytest.approx(called, rel=0.02)
        tokens, most = 30e9, 0.01
    else:
        by_hand, figure, vocab_size, tokens = PUBLISHED[recipe]
        assert parameters(config, vocab_size) == by_hand
        assert rounded(by_hand, figure) == figure
        most = 0.005
    read = config.trainer.steps * config.trainer.batch_size * config.model.context
    assert read == pytest.approx(tokens, rel=most)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_says_where_it_is_published_and_chooses_what_it_sets(recipe):
    held = yaml.safe_load(option_files("recipe")[recipe].read_text())
    axes = {name.removeprefix("override /") for item in held["defaults"] for name in item}
    assert {"preset", "model", "data", "tokenizer", "optimizer", "schedule"} <= axes
    groups = {"optimizer", "schedule", "trainer", "tokenizer", "architecture"}
    assert set(held["recipe"]) <= groups | {"source", "unverified"}
    assert set(held) == {"defaults", "recipe"}
    assert re.search(r"\d{4}", held["recipe"]["source"])


def test_the_hyperparameters_of_olmo_2_are_those_of_its_config():
    config = compose(["recipe=olmo2_7b"])
    values = plain(config)
    expected = {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
    expected |= {"decay_norms": True, "decay_embeddings": False}
    assert {key: values["optimizer"][key] for key in expected} == expected
    assert values["schedule"] == {"type": "cosine", "warmup": 8388608000 // 2**22, "final": 0.1}
    assert config.architecture.rope_base == 500000
    assert (config.norm.eps, config.qk_norm, config.init.truncate) == (1e-6, "full", 3)


def test_typed_wins_over_the_recipe_and_the_recipe_over_its_preset():
    config = compose(["placement=post", "recipe=gpt2_124m", "optimizer.lr=1e-3", "trainer.steps=9"])
    assert config.choices.placement == "post"
    assert config.choices.preset == "gpt2"
    assert config.architecture.bias is True
    assert (config.optimizer.lr, config.optimizer.betas) == (1e-3, (0.9, 0.95))
    assert (config.trainer.steps, config.trainer.batch_size) == (9, 480)
    assert compose(["recipe=olmo2_1b", "norm=dyt"]).norm.type == "dyt"
    mixln = compose(["recipe=mixln_71m"])
    assert (mixln.choices.preset, mixln.choices.placement) == ("llama", "mixln")


def test_a_typed_option_is_its_file_and_wins_over_the_recipe():
    config = compose(["recipe=olmo2_1b", "optimizer=muon"])
    assert plain(config.optimizer) == plain(compose(["optimizer=muon"]).optimizer)
    assert config.schedule.warmup == 4000
    config = compose(["recipe=hybridnorm_550m", "preset=gpt2", "model=nano"])
    assert config.architecture == compose(["preset=gpt2", "model=nano"]).architecture
    assert config.model == compose(["preset=gpt2", "model=nano"]).model


def test_a_recipe_is_what_it_sets_and_no_part_of_a_runs_identity():
    typed = "recipe=mixln_71m data=stories tokenizer=byte".split()
    same = (
        "preset=llama placement=mixln model=mixln_71m data=stories tokenizer=byte "
        "optimizer.lr=1e-3 optimizer.betas=[0.9,0.999] optimizer.weight_decay=0 "
        "schedule.warmup=1000 schedule.final=0.1 trainer.steps=10000 trainer.batch_size=512 "
        "trainer.accumulation=2 trainer.clip=0 trainer.precision=bf16"
    ).split()
    assert run_hash(compose(typed), {}) == run_hash(compose(same), {})


def test_a_wrong_recipe_is_answered_in_one_line(tmp_path):
    groups = {"optimiser: {lr: 1}": "did you mean 'optimizer'", "optimizer: {speed: 2}": "speed"}
    for group, said in groups.items():
        plugins = write_plugins(tmp_path, "", {"recipe/one": f"recipe: {{{group}}}\n"})
        with pytest.raises(ConfigError, match=said):
            compose([plugins, "recipe=one"])


def test_explain_names_a_recipes_source_and_what_is_not_verified(capsys):
    for typed, said in (
        ("peri_400m model=nano", "=peri_400m: Kim et al. 2025, arXiv:2502.02732 not verified: eve"),
        ("hybridnorm_550m --vocab 100278", "model.kv_heads 4 model=hybridnorm_550m"),
    ):
        assert explain(f"recipe={typed}".split()) == 0
        assert said in " ".join(capsys.readouterr().out.split())


QUICK = ["mixln_71m", "olmo2_7b"]


@pytest.mark.parametrize(
    "recipe",
    [*QUICK, *(pytest.param(r, marks=pytest.mark.nightly) for r in RECIPES if r not in QUICK)],
)
def test_a_recipe_trains_when_scaled_down(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    width = compose([f"recipe={recipe}"]).model
    summary = train(compose([
        f"recipe={recipe}", "model=nano", f"model.kv_heads={4 * width.kv_heads // width.heads}",
        "data=stories", "data.documents=150", "data.val_tokens=128", "tokenizer=byte",
        "trainer.steps=2", "trainer.batch_size=4", "trainer.accumulation=2", "trainer.eval_every=0",
        "trainer.threads=1", "trainer.device=cpu", "tracking=none",
    ]))  # fmt: skip
    assert (summary["status"], summary["choices"]["recipe"]) == ("finished", recipe)
