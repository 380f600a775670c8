"""Plugins that the program cannot build or call, that fail, or that show a fault in two passes."""

import json
import re
from pathlib import Path

import pytest
import torch
from plugin_folders import write_plugins
from refusing import refused
from trainers import VOCABULARY

from transformer_norms import build_model, cli, compose, train
from transformer_norms.training.causality import pass_warnings

SIZES = ["model=nano", "model.context=16", "trainer.batch_size=4", "trainer.threads=1"]
SIZES += ["trainer.device=cpu", "trainer.probe_every=0", "model.depth=1"]


def module(takes="**rest", init="", forward="x, *context", body="return x", head=""):
    """The code of a class: what its constructor takes and does, and what its forward pass does."""
    return (
        f"class Broken(torch.nn.Module):\n    {head}\n    def __init__(self, {takes}):\n"
        f"        super().__init__()\n        {init}\n    def forward(self, {forward}):\n"
        f"        {body}"
    )


def corpus(identity, documents="return []", more=""):
    return (
        f"class Broken:\n    floor = None\n    def documents(self):\n        {documents}\n"
        f"    def identity(self{more}):\n        return {{{identity}}}"
    )


def function(signature, body):
    return f"def {signature}:\n    {body}"


def loss(takes, body):
    return f"class Broken:\n    def __call__(self, {takes}):\n        {body}"


UNGATED = {"head": "gated = False", "takes": "*, width, mlp_width, **rest"}
TRAINED = "self.gain = torch.nn.Parameter(torch.ones(width)); self.seen = 0"
BROKEN = {
    "attention without sizes": ("attention", module(""),
        "attention.type: broken takes no argument width; it is built with width, heads,"),
    "attention without x": ("attention", module(forward="q, k, v"),
        "forward(self, q, k, v) is called as forward(q, k, v, x): too many"),
    "attention without forward": ("attention", module().partition("    def forward")[0],
        "attention.type: broken has no method forward(q, k, v, x)"),
    "attention that returns a tuple": ("attention", module(forward="q, k, v, x", body="return v,"),
        "Broken returns [<class 'tuple'>]; wanted is [2, 4, 12, 16]"),
    "mlp without gated": ("mlp", module(),
        "mlp.type: broken has no attribute gated"),
    "mlp without context": ("mlp", module(forward="x", head="gated = False"),
        "forward(self, x) is called as forward(x, angles, cache)"),
    "mlp with layers in a list": ("mlp",
        module(init="self.layers = [torch.nn.Linear(width, width)]",
               body="return self.layers[0](x)", **UNGATED),
        "Broken.layers requires a gradient, and nothing trains it: write nn.Parameter(...), or nn"),
    "mlp that returns its inner width": ("mlp",
        module(init="self.up = torch.nn.Linear(width, mlp_width)",
               body="return self.up(x)", **UNGATED),
        "Broken returns [2, 12, 256]; wanted is [2, 12, 64]"),
    "norm with an annotation that nothing defines": ("norm", module("width, gain: 'Rat' = 1"),
        "norm.type: broken: an annotation cannot be read: NameError: name 'Rat' is not defined"),
    "norm with two streams": ("norm", module("width", forward="x, y"),
        "forward(self, x, y) is called as forward(x): missing a required argument: 'y'"),
    "norm whose width has no position": ("norm", module("*, width"),
        "norm.type: broken: its first arguments should be (width)"),
    "norm with a tensor for a gain": ("norm",
        module("width", "self.gain = torch.ones(width, requires_grad=True)",
               body="return self.gain * x"),
        "Broken.gain requires a gradient, and nothing trains it: write nn.Parameter(...)"),
    "norm that returns fewer numbers": ("norm", module("width", body="return x[..., 1:]"),
        "norm.Broken returns [2, 3, 63] for x of [2, 3, 64] (at pre)"),
    "loss without targets": ("loss", loss("logits", "return logits.sum()"),
        "__call__(self, logits) is called as __call__(logits, targets)"),
    "schedule without a horizon": ("schedule", function("broken(step)", "return 1.0"),
        "schedule.type: broken: its first arguments should be (step, steps)"),
    "optimizer of parameters": ("optimizer", function("broken(parameters)", "return []"),
        "optimizer.type: broken: its first arguments should be (model)"),
    "corpus whose identity wants more": ("data", corpus("'type': 'broken'", more=", more"),
        "identity(self, more) is called as identity(): missing a required argument: 'more'"),
    "corpus whose identity has no type": ("data", corpus("'name': 'broken'"),
        "Broken.identity() returns {'name': 'broken'}; wanted is a dict with type"),
}  # fmt: skip
REGISTRIES = {
    "attention": "model.attention import ATTENTIONS",
    "mlp": "model.mlp import MLPS",
    "norm": "norms import NORMS",
    "loss": "training.loss import LOSSES",
    "schedule": "training.schedule import SCHEDULES",
    "optimizer": "training.optimizer import OPTIMIZERS",
    "data": "data import CORPORA",
}
SETTINGS = {
    "mlp": "activation: gelu\n",
    "data": "split: hash\nval_fraction: 0.1\ntest_fraction: 0\nval_tokens: 99\nseed: auto\n",
}


def write_plugin(folder, axis, name, code):
    """Writes it to mine.py. Returns the words that choose it."""
    registry = REGISTRIES[axis].rpartition(" ")[2]
    head = f"import random\nimport torch\nfrom transformer_norms.{REGISTRIES[axis]}\n"
    code = f'{head}{registry}.pop("{name}", None)\n@{registry}("{name}")\n{code}\n'
    files = {f"{axis}/{name}": f"type: {name}\n{SETTINGS.get(axis, '')}"}
    return [write_plugins(folder, code, files), f"{axis}={name}"]


@pytest.mark.parametrize("case", BROKEN)
def test_a_class_that_cannot_be_built_or_called_is_refused(case, tmp_path, monkeypatch):
    """Before anything is written."""
    axis, code, said = BROKEN[case]
    monkeypatch.chdir(tmp_path)
    typed = ["data=stories", *write_plugin(tmp_path, axis, "broken", code)][axis == "data" :]
    assert said in refused(lambda: train(compose(["model=nano", "tracking=none", *typed])))
    assert not Path("runs").exists()


RAISES = "raise RuntimeError('no such thing')"
STEPS = (
    "class Steps(torch.optim.Optimizer):\n        def step(self):\n"
    f"            {RAISES}\n    return [Steps(model.parameters(), {{'lr': 1.0}})]"
)
BUILD, CALL = "Faulty.__init__", "Faulty.forward"
FAULTY = {  # the axis of a class or function, its code, the method that fails, and the exit code
    "norm at build": ("norm", module("width", RAISES), BUILD, 2),
    "norm at a call": ("norm", module("width", body="return x.view(7)"), CALL, 2),
    "norm at a value": ("norm", module("width", body="return x * float('view(7)')"), CALL, 2),
    "mlp at a call": ("mlp", module(body=RAISES, head="gated = False"), CALL, 2),
    "attention at build": ("attention", module(init=RAISES, forward="q, k, v, x"), BUILD, 2),
    "corpus": ("data", corpus("'type': 'faulty'", f"{RAISES}; yield ''"), "Faulty.documents", 2),
    "loss": ("loss", loss("logits, targets", RAISES), "Faulty.__call__", 1),
    "schedule": ("schedule", function("faulty(step, steps)", RAISES), "faulty", 1),
    "optimizer at build": ("optimizer", function("faulty(model)", RAISES), "faulty", 2),
    "optimizer at a step": ("optimizer", function("faulty(model)", STEPS),
        "faulty.<locals>.Steps.step", 1),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTY)
def test_an_error_in_a_plugin_is_one_line_with_its_place(case, tmp_path, monkeypatch, capsys):
    axis, code, method, exit_code = FAULTY[case]
    monkeypatch.chdir(tmp_path)
    name = f"faulty_{case.replace(' ', '_')}"
    code = code.replace("faulty(", f"{name}(").replace("Broken", "Faulty")
    typed = [*SIZES, "tracking=none", *write_plugin(tmp_path, axis, name, code)]
    Path("corpus.txt").write_text("the cat sat on the mat and the dog sat on the log " * 60)
    data = ["data=text", "data.paths=corpus.txt", "data.val_tokens=99"] * (axis != "data")
    assert cli.main(["trainer.steps=1", *data, *typed]) == exit_code
    *_, line = capsys.readouterr().err.splitlines()
    place, kept = re.fullmatch(r"(.*?): \w+Error: .*; its traceback is in (.*)", line).groups()
    source = tmp_path / "mine.py"
    *_, faulty = [i for i, text in enumerate(source.read_text().splitlines(), 1)
                  if "raise" in text or "view(7)" in text]  # fmt: skip
    assert place == f"{method.replace('faulty', name)} ({source}:{faulty})"
    assert f'mine.py", line {faulty}' in Path(kept).read_text()
    summaries = [json.loads(file.read_text()) for file in Path().glob("runs/*/*/summary.json")]
    assert [one["status"] for one in summaries] == ["failed"] * (exit_code == 1)
    assert all("RuntimeError: no such thing" in one["error"] for one in summaries)
    assert bool(list(Path().glob("runs/*/*"))) == (exit_code == 1)


AHEAD = "the model looks ahead or keeps state: in training, later tokens move earlier logits by"
REPEATS = {  # what a norm keeps, what its forward pass does, and what is said of it
    "counts its calls": (TRAINED, "self.seen += 1; return self.gain * x * self.seen", AHEAD),
    "draws numbers without torch": (TRAINED, "return self.gain * x * random.random()", AHEAD),
    "keeps its state in a buffer": (f"{TRAINED}; self.register_buffer('past', torch.zeros(width))",
        "y = self.gain * x + self.past; self.past += 1; return y", None),
    "drops numbers": (TRAINED, "return torch.nn.functional.dropout(self.gain * x)", None),
    "looks ahead": (TRAINED,
        "return self.gain * x / x.square().mean(1, keepdim=True).sqrt()", AHEAD),
    "is not finite": (TRAINED, "return self.gain * x / 0", None),
}  # fmt: skip


@pytest.mark.parametrize("case", REPEATS)
def test_what_two_passes_show_of_a_model_is_said_and_leaves_the_model_as_it_was(case, tmp_path):
    init, body, said = REPEATS[case]
    name = f"repeats_{case.replace(' ', '_')}"
    code = module("width", init, body=body).replace("Broken", "Repeats")
    model = build_model(compose([*write_plugin(tmp_path, "norm", name, code), *SIZES]), VOCABULARY)
    before = [tensor.clone() for tensor in model.state_dict().values()]
    state = torch.get_rng_state()
    lines = pass_warnings(model, VOCABULARY)
    assert [line[: len(said or "")] for line in lines] == ([said] if said else [])
    assert torch.equal(state, torch.get_rng_state())
    assert all(map(torch.equal, before, model.state_dict().values()))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


DROPOUT, BATCHNORM = ["model.dropout=0.1"], ["norm=batchnorm", "norm.allow_noncausal=true"]


@pytest.mark.parametrize(
    ("typed", "looks_ahead"), [(DROPOUT, False), (BATCHNORM, True), ([*BATCHNORM, *DROPOUT], True)]
)
def test_dropout_and_running_averages_are_no_state_that_a_second_pass_shows(typed, looks_ahead):
    model = build_model(compose([*SIZES, *typed]), VOCABULARY)
    lines = pass_warnings(model, VOCABULARY)
    assert [line[: len(AHEAD)] for line in lines] == [AHEAD] * looks_ahead
