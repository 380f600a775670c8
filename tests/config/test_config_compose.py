"""One validated config out of what was typed: which choice wins, and that nothing is lost."""

import copy
import re
import shutil
from dataclasses import FrozenInstanceError, is_dataclass
from itertools import cycle
from pathlib import Path

import pytest
from combinations import combined
from omegaconf import OmegaConf

from transformer_norms.config.compose import compose, recompose
from transformer_norms.config.saved import FORM, to_mapping, to_yaml
from transformer_norms.config.tree import Config, marked
from transformer_norms.kinds import Mark, Values, plain, value_at
from transformer_norms.names import AXES, NORM_WORDS, folder_of_configs, options
from transformer_norms.run.identity import run_hash
from transformer_norms.run.plan import Plan
from transformer_norms.run.run import Run
from transformer_norms.signals import Stopping

WIDE = "model.width=1792"  # the groups of group_norm divide deepseek_v3's latents


def composed(*overrides: str) -> Config:
    return compose(overrides)


def identity(config) -> str:
    return run_hash(config, {})


@pytest.mark.parametrize(("typed", "differs"), [
    ([], False), (["optimizer=muon"], True), (["model.dropout=0.1"], True)
])  # fmt: skip
def test_a_device_is_a_part_of_an_identity_where_more_than_the_last_digits_differ(typed, differs):
    on_each = {identity(compose(typed, device=device)) for device in ("cuda", "cpu")}
    assert (len(on_each) == 2) == differs


@pytest.fixture
def saved(tmp_path):
    """Writes a config as a run folder does; `config=FILE`."""

    def save(*overrides: str) -> tuple[Config, str]:
        config = compose(overrides)
        (tmp_path / "config.yaml").write_text(to_yaml(config))
        return config, f"config={tmp_path / 'config.yaml'}"

    return save


def test_every_option_composes():
    # Several axes at a time: the n-th option of each, or its first where it has fewer.
    # Each recipe and each preset has tests in its own file.
    apart = ("sweep", "launcher", "preset", "recipe")
    several = {axis: options(axis) for axis in AXES if axis not in apart}
    for number in range(max(map(len, several.values()))):
        names = {axis: (known[number:] or known)[0] for axis, known in several.items()}
        if names["placement"] == "qk_cap":  # whose cap attention=sinks refuses
            names["attention"] = "softmax"
        allowed = ["norm.allow_noncausal=true"] * (names["norm"] == "batchnorm")
        choices = composed(*(f"{axis}={name}" for axis, name in names.items()), *allowed).choices
        for axis in names.keys() & choices.keys():
            assert names[axis] in (choices[axis], "auto")


def test_every_yaml_belongs_to_an_axis():
    found = {file.relative_to(folder_of_configs()) for file in folder_of_configs().rglob("*.yaml")}
    axes = [*AXES, "norm/head"]
    known = {Path(axis, f"{name}.yaml") for axis in axes for name in options(axis)}
    assert found == {*known, Path("train.yaml"), Path("other_codebases.yaml")}


@pytest.mark.parametrize("share", [32, pytest.param(1, marks=pytest.mark.nightly)])
def test_every_preset_and_recipe_composes_with_norms_and_placements(share):
    """With a share of the placements, and each time another norm; with all placements nightly."""
    norms, placements = cycle(options("norm")), options("placement")
    starts = [("preset", name, [WIDE]) for name in options("preset")]
    starts += [("recipe", name, []) for name in options("recipe")]
    for number, (axis, name, wide) in enumerate(starts):
        for placement in placements[number % share :: share]:
            config = combined(f"{axis}={name}", *wide, norm=next(norms), placement=placement)
            assert (config.choices[axis], config.choices.placement) == (name, placement)


HYBRID_GPT2 = "preset=gpt2 architecture.bias=false placement=hybrid"


@pytest.mark.parametrize(
    ("typed", "key", "value"),
    [
        ("", "architecture.embed_scale", "none"),
        ("placement=post", "architecture.embed_scale", "sqrt(d)"),
        ("placement=post architecture.embed_scale=none", "architecture.embed_scale", "none"),
        ("architecture.embed_scale=2 placement=post", "architecture.embed_scale", 2),
        (HYBRID_GPT2, "architecture.bias", False),
        (HYBRID_GPT2, "choices.init", "gpt2"),  # hybrid brings megatron
        ("placement=hybrid", "choices.init", "megatron"),
        ("placement=hybrid init=scaled", "choices.init", "scaled"),
        ("placement=post", "final_norm", "none"),
        ("placement=post final_norm=always", "final_norm", "norm"),
        ("model.heads=8", "model.head_dim", 16),
        # The start of post, transformer2017, scales the embedded tokens.
        ("init=scaled placement=post", "architecture.embed_scale", "none"),
        ("norm=none preset=gpt2", "norm.type", "none"),
        ("preset=gpt2 norm=none", "choices.norm", "none"),
        ("preset=gpt2 norm=rmsnorm", "architecture.bias", True),
    ],
)
def test_typed_wins_over_the_preset_over_the_placement_over_none(typed, key, value):
    assert value_at(composed(*typed.split()), key) == value


@pytest.mark.parametrize(
    ("typed", "scale", "cap"),
    [([], 3, 7), (["placement=post"], 3, 7), (["placement=qk_cap"], 3, 50)],
)
def test_a_placement_wins_over_a_norm_and_a_norm_over_none(typed, scale, cap):
    default = composed()
    brings = {"embed_scale": 3, "attention_cap": 7}
    # With a norm that brings these choices.
    found = recompose(default, typed, {"norm": ("rmsnorm", {**default.norm, "brings": brings})})
    assert (found.architecture.embed_scale, found.architecture.attention_cap) == (scale, cap)


def test_a_word_may_look_like_a_number_and_a_number_may_stand_where_a_word_did():
    assert [composed(f"study={word}").study for word in ("2024", "1e5")] == ["2024", "1e5"]
    assert composed("data=hub", "data.documents=500").data.documents == 500
    for typed, path in ("a.txt", "a.txt"), ("'ä b.txt'", "ä b.txt"):
        assert composed("data=text", f"data.paths={typed}").data.paths == (path,)


def test_a_composed_config_cannot_be_changed_by_accident():
    config = composed()
    with pytest.raises(AttributeError, match="read-only"):
        config.norm.eps = 1
    with pytest.raises(FrozenInstanceError):
        config.model.width = 1
    with pytest.raises(TypeError):
        config.chosen["model"]["width"] = 1


def test_compose_knows_no_current_folder_and_writes_nothing(tmp_path, monkeypatch):
    default = composed()
    monkeypatch.chdir(tmp_path)
    assert (composed(), list(tmp_path.iterdir())) == (default, [])


@pytest.mark.goal("K2")
@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["preset=gpt2", "norm=none", "seed=7", "study=2024"],
        ["placement=hybrid", "mlp=swiglu", "model.mlp_width=96", "embed=layernorm"],
        ["placement=post", "final_norm=layernorm", "data=stories", "tokenizer=bpe"],
        ["placement=post", "architecture.embed_scale=2", "optimizer=muon", "tracking=none"],
        ["recipe=gpt2_124m", "optimizer=muon"],
    ],
    ids=" ".join,
)
def test_a_saved_config_composes_to_itself_with_the_same_hash(overrides, saved):
    config, file = saved(*overrides)
    content = {"form": FORM, **to_mapping(config)}
    assert to_yaml(config) == OmegaConf.to_yaml(OmegaConf.create(content))
    again = composed(file)
    assert again == config
    assert identity(again) == identity(config)
    assert composed(file, "study=other", "tracking=none", "trainer.keep=1").seed == again.seed


CHANGES = "placement=post placement=hybrid norm=none model.heads=8 model.width=64 mlp=swiglu"
CHANGES += " final_norm=always final_norm=rmsnorm init=gpt2 seed=5 qk_norm=head"


@pytest.mark.parametrize(
    ("own", "typed"),
    [
        *(("seed=3 norm=layernorm", change) for change in CHANGES.split()),
        ("", "placement=post final_norm=always"),
        ("", "norm=dyt model.context=8"),
        ("architecture.embed_scale=2 model.mlp_width=96", "placement=post model.width=64"),
        ("norm=rmsnorm_eps5 placement=mixln init=mup", "norm=layernorm final_norm=none"),
        ("placement.equation=x+f(norm(x)) norm.eps=1e-4", "placement=sandwich"),
    ],
)
def test_what_is_typed_beside_a_saved_config_is_what_would_be_typed_beside_the_first_command(
    own, typed, saved
):
    """With config=FILE, and with a config that has no file. A chosen option is as its file says."""
    config, file = saved(*own.split())
    again, keys = composed(file, *typed.split()), re.findall(r"(\S+?)=", typed)
    left = [text for text in own.split() if not {text.split("=")[0], text.split(".")[0]} & {*keys}]
    assert again == composed(*left, *typed.split())
    assert to_yaml(recompose(config, typed.split())) == to_yaml(again)
    assert to_yaml(again) != to_yaml(config) == to_yaml(recompose(config, []))


def test_a_file_edited_since_does_not_change_what_a_saved_config_means(
    saved, tmp_path, monkeypatch
):
    config, file = saved("final_norm=layernorm", "placement=hybrid")
    edited = tmp_path / "configs"
    shutil.copytree(folder_of_configs(), edited)
    for name in ("norm/layernorm.yaml", "norm/rmsnorm.yaml", "init/megatron.yaml"):
        text = (edited / name).read_text()
        (edited / name).write_text(text.replace("eps: 1e-", "eps: 2e-").replace("2.5", "3.5"))
    for module in ("config.chosen_files", "names"):
        monkeypatch.setattr(f"transformer_norms.{module}.folder_of_configs", lambda: edited)
    assert composed(file) == config
    assert composed(file, "seed=1").norms == config.norms
    assert composed("final_norm=layernorm", "placement=hybrid") != config


def test_a_config_saved_on_another_device_runs_on_this_one(saved):
    config, file = saved()
    text, path = to_yaml(config), Path(file.removeprefix("config="))
    path.write_text(text.replace("    device: cpu", "    device: cuda"))
    assert path.read_text() != text
    assert composed(file) == config


def leaves(config: dict, above: tuple = ()) -> dict:
    found = {}
    for key, value in config.items():
        here = (*above, key)
        found |= leaves(value, here) if isinstance(value, dict) and value else {here: value}
    return found


@pytest.mark.goal("K2")
def test_every_key_is_in_the_identity_or_declared_to_be_outside():
    config = plain(composed("final_norm=layernorm"))
    outside = {tuple(key.split(".")) for key in marked(Mark.NOT_IN_IDENTITY)}
    outside |= {("norms", "layernorm", key[2]) for key in outside if key[:2] == ("norms", "*")}
    assert len(outside) > 20
    for path in leaves(config):
        node = edited = copy.deepcopy(config)
        for name in path[:-1]:
            node = node[name]
        node[path[-1]] = "another"
        excluded = any(path[: len(key)] == key for key in outside)
        assert (identity(edited) == identity(config)) == excluded, path


def watch(config: Config, monkeypatch) -> set:
    """Returns the paths of the keys of a config that are asked for from now on."""
    read: set = set()
    places: dict = {}  # of a node that is Values, and of the class of any other node

    def noting(look):
        def note(self, key):
            if (place := places.get(id(self), places.get(type(self)))) is not None:
                read.add((*place, key))
            return look(self, key)

        return note

    def visit(node, place):
        places[id(node) if isinstance(node, Values) else type(node)] = place
        for key in node if isinstance(node, Values) else node.__dataclass_fields__:
            value = value_at(node, key)
            if isinstance(value, Values) or is_dataclass(value):
                visit(value, (*place, key))

    visit(config, ())
    for kind in [key for key in places if isinstance(key, type)]:
        monkeypatch.setattr(kind, "__getattribute__", noting(object.__getattribute__))
    for name in ("__getattr__", "__getitem__"):
        monkeypatch.setattr(Values, name, noting(getattr(Values, name)))
    return read


# Read by people, and by what no training calls: the command, the report, the door (config=FILE).
READ_ELSEWHERE = "choices chosen tracking placement.source placement.brings norm.formula".split()
READ_ELSEWHERE += ["norm.source", "init.source", "about", "study"]


@pytest.mark.goal("K2")
def test_every_key_of_a_config_is_read_when_its_run_is_trained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transformer_norms.run.identity.run_hash", lambda *_: "0" * 16)
    monkeypatch.setattr("transformer_norms.run.beginning.to_yaml", lambda _: "")
    config = composed(
        "model=nano", "placement=hybrid", "data=stories", "data.documents=300",
        "data.val_tokens=64", "trainer.steps=2", "trainer.batch_size=2", "schedule.warmup=0",
        "tracking=none", "architecture.value_residual=0.5", "architecture.value_embedding=1",
    )  # fmt: skip
    keys, read = leaves(plain(config)), watch(config, monkeypatch)
    with Stopping() as stopping:
        Run(Plan(config)).train(stopping, lambda folder: None, lambda: None)
    dead = {".".join(path) for path in keys if path not in read}
    assert {key for key in dead if not key.startswith(tuple(READ_ELSEWHERE))} == set()


@pytest.mark.parametrize(
    ("key", "word"), [(k, w) for k, words in NORM_WORDS.items() for w in words]
)
def test_every_word_that_a_message_offers_for_a_norm_is_taken(key, word):
    assert compose([f"{key}={word}"])
