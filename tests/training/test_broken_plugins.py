"""Plugins that the program cannot build or call, that fail, or that show a fault in two passes."""

import json
import re
from pathlib import Path

import pytest
import torch

from transformer_norms import ConfigError, cli, compose, train
from transformer_norms.config.building import build_model
from transformer_norms.errors import InputError
from transformer_norms.training.causality import pass_warnings

VOCABULARY = 31
SIZES = ["model=nano", "model.context=16", "trainer.batch_size=4", "trainer.threads=1"]
SIZES += ["trainer.device=cpu", "trainer.probe_every=0"]
MODULE = "class Broken(torch.nn.Module):\n    "
FORWARD = "def __init__(self, **rest):\n        super().__init__()\n    def forward(self, "
BROKEN = {
    "attention without sizes": (
        "attention",
        MODULE + "def __init__(self):\n        super().__init__()",
        "attention.type: broken takes no argument width; it is built with width, heads,",
    ),
    "attention without x": (
        "attention",
        MODULE + FORWARD + "q, k, v):\n        return v",
        "forward(self, q, k, v) is called as forward(q, k, v, x): too many",
    ),
    "attention without forward": (
        "attention",
        MODULE + "def __init__(self, **rest):\n        super().__init__()",
        "attention.type: broken has no method forward(q, k, v, x)",
    ),
    "mlp without gated": (
        "mlp",
        MODULE + FORWARD + "x, *context):\n        return x",
        "mlp.type: broken has no attribute gated",
    ),
    "mlp without context": (
        "mlp",
        MODULE + "gated = False\n    " + FORWARD + "x):\n        return x",
        "forward(self, x) is called as forward(x, angles, cache)",
    ),
    "norm with two streams": (
        "norm",
        MODULE + "def __init__(self, width):\n        super().__init__()\n"
        "    def forward(self, x, y):\n        return x",
        "forward(self, x, y) is called as forward(x): missing a required argument: 'y'",
    ),
    "loss without targets": (
        "loss",
        "class Broken:\n    def __call__(self, logits):\n        return logits.sum()",
        "__call__(self, logits) is called as __call__(logits, targets)",
    ),
    "schedule without a horizon": (
        "schedule",
        "def broken(step):\n    return 1.0",
        "schedule.type: broken: its first arguments should be (step, steps)",
    ),
    "norm whose width has no position": (
        "norm",
        MODULE + "def __init__(self, *, width):\n        super().__init__()\n"
        "    def forward(self, x):\n        return x",
        "norm.type: broken: its first arguments should be (width)",
    ),
    "optimizer of parameters": (
        "optimizer",
        "def broken(parameters):\n    return []",
        "optimizer.type: broken: its first arguments should be (model)",
    ),
    "corpus whose identity wants more": (
        "data",
        "class Broken:\n    floor = None\n    def documents(self):\n        return []\n"
        "    def identity(self, more):\n        return {'type': 'broken'}",
        "identity(self, more) is called as identity(): missing a required argument: 'more'",
    ),
    "corpus whose identity has no type": (
        "data",
        "class Broken:\n    floor = None\n    def documents(self):\n        return []\n"
        "    def identity(self):\n        return {'name': 'broken'}",
        "Broken.identity() returns {'name': 'broken'}; wanted is a dict with type",
    ),
}
BODY = "def forward(self, x, *context):\n        return "
MLP = MODULE + "gated = False\n    def __init__(self, *, width, mlp_width, **rest):\n"
NORM = MODULE + "def __init__(self, width):\n        super().__init__()\n"
BROKEN |= {
    "mlp with layers in a list": (
        "mlp",
        f"{MLP}        super().__init__()\n"
        f"        self.layers = [torch.nn.Linear(width, width)]\n    {BODY}self.layers[0](x)",
        "Broken.layers requires a gradient, and nothing trains it: write nn.Parameter(...), or nn.",
    ),
    "norm with a tensor for a gain": (
        "norm",
        f"{NORM}        self.gain = torch.ones(width, requires_grad=True)\n    {BODY}self.gain * x",
        "Broken.gain requires a gradient, and nothing trains it: write nn.Parameter(...)",
    ),
    "mlp that returns its inner width": (
        "mlp",
        f"{MLP}        super().__init__()\n"
        f"        self.up = torch.nn.Linear(width, mlp_width)\n    {BODY}self.up(x)",
        "Broken returns [2, 12, 256]; wanted is [2, 12, 64]",
    ),
    "attention that returns a tuple": (
        "attention",
        MODULE + FORWARD + "q, k, v, x):\n        return v, None",
        "Broken returns [<class 'tuple'>]; wanted is [2, 4, 12, 16]",
    ),
    "norm that returns fewer numbers": (
        "norm",
        f"{NORM}    {BODY}x[..., 1:]",
        "norm.Broken returns [2, 3, 63] for x of [2, 3, 64] (at pre)",
    ),
}
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


def write_plugin(folder, axis, name, code, settings=""):
    registry = REGISTRIES[axis].rpartition(" ")[2]
    file = folder / "mine" / "configs" / axis / f"{name}.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(f"type: {name}\n{SETTINGS.get(axis, settings)}")
    (folder / "mine" / f"{name}.py").write_text(
        f"import random\nimport torch\nfrom transformer_norms.{REGISTRIES[axis]}\n"
        f'{registry}.pop("{name}", None)\n@{registry}("{name}")\n{code}\n'
    )


@pytest.mark.parametrize("case", BROKEN)
def test_a_class_that_cannot_be_built_or_called_is_refused_before_anything_is_written(
    case, tmp_path, monkeypatch
):
    axis, code, said = BROKEN[case]
    monkeypatch.chdir(tmp_path)
    write_plugin(tmp_path, axis, "broken", code)
    data = [] if axis == "data" else ["data=stories"]
    with pytest.raises((ConfigError, InputError)) as refused:
        train(compose(["plugins=mine", "model=nano", "tracking=none", *data, f"{axis}=broken"]))
    assert said in str(refused.value)
    assert str(refused.value).isprintable()
    assert not Path("runs").exists()


RAISES = "raise RuntimeError('no such thing')"
STEPS = (
    "def faulty(model):\n    class Steps(torch.optim.Optimizer):\n        def step(self):\n"
    f"            {RAISES}\n    return [Steps(model.parameters(), {{'lr': 1.0}})]"
)
CORPUS = (
    "class Faulty:\n    floor = None\n    def identity(self):\n        return {'type': 'faulty'}\n"
    f"    def documents(self):\n        {RAISES}\n        yield ''"
)
BUILD, CALL = "Faulty.__init__", "Faulty.forward"
FAULTY = {  # the axis of a class or function, its code, the method that fails, and the exit code
    "norm at build": (
        "norm",
        f"{MODULE}def __init__(self, width):\n        {RAISES}\n    {BODY}x",
        BUILD,
        2,
    ),
    "norm at a call": ("norm", f"{NORM}    {BODY}x.view(7)", CALL, 2),
    "norm at a value": ("norm", f"{NORM}    {BODY}x * float('view(7)')", CALL, 2),
    "mlp at a call": (
        "mlp",
        f"{MODULE}gated = False\n    {FORWARD}x, *context):\n        {RAISES}",
        CALL,
        2,
    ),
    "attention at build": (
        "attention",
        f"{MODULE}def __init__(self, **rest):\n        {RAISES}\n"
        "    def forward(self, q, k, v, x):\n        return v",
        BUILD,
        2,
    ),
    "corpus": ("data", CORPUS, "Faulty.documents", 2),
    "loss": (
        "loss",
        f"class Faulty:\n    def __call__(self, logits, targets):\n        {RAISES}",
        "Faulty.__call__",
        1,
    ),
    "schedule": ("schedule", f"def faulty(step, steps):\n    {RAISES}", "faulty", 1),
    "optimizer at build": ("optimizer", f"def faulty(model):\n    {RAISES}", "faulty", 2),
    "optimizer at a step": ("optimizer", STEPS, "faulty.<locals>.Steps.step", 1),
}


@pytest.mark.parametrize("case", FAULTY)
def test_an_error_in_a_plugin_is_one_line_with_its_method_and_place_and_a_file_with_the_traceback(
    case, tmp_path, monkeypatch, capsys
):
    axis, code, method, exit_code = FAULTY[case]
    monkeypatch.chdir(tmp_path)
    name = f"faulty_{case.replace(' ', '_')}"
    code = code.replace("faulty(", f"{name}(").replace("Broken", "Faulty")
    write_plugin(tmp_path, axis, name, code)
    Path("corpus.txt").write_text("the cat sat on the mat and the dog sat on the log " * 60)
    data = [] if axis == "data" else ["data=text", "data.paths=corpus.txt", "data.val_tokens=99"]
    typed = [*SIZES, "model.depth=1", "tracking=none", "plugins=mine", *data, f"{axis}={name}"]
    assert cli.main(["trainer.steps=1", *typed]) == exit_code
    *_, line = capsys.readouterr().err.splitlines()
    place, kept = re.fullmatch(r"(.*?): \w+Error: .*; its traceback is in (.*)", line).groups()
    source = tmp_path / "mine" / f"{name}.py"
    *_, faulty = [i for i, text in enumerate(source.read_text().splitlines(), 1)
                  if "raise" in text or "view(7)" in text]  # fmt: skip
    assert place == f"{method.replace('faulty', name)} ({source}:{faulty})"
    traceback = Path(kept).read_text()
    assert f'{name}.py", line {faulty}' in traceback
    summaries = [json.loads(file.read_text()) for file in Path().glob("runs/*/*/summary.json")]
    assert [one["status"] for one in summaries] == ["failed"] * (exit_code == 1)
    assert all("RuntimeError: no such thing" in one["error"] for one in summaries)
    assert bool(list(Path().glob("runs/*/*"))) == (exit_code == 1)


KEEPS = "        self.gain = torch.nn.Parameter(torch.ones(width))\n        self.seen = 0\n"
BUFFER = KEEPS + "        self.register_buffer('past', torch.zeros(width))\n"
REPEATS = {  # code of a norm, and what is said of it
    "counts its calls": (
        f"{NORM}{KEEPS}    def forward(self, x):\n        self.seen += 1\n"
        "        return self.gain * x * self.seen",
        "a second pass over the same tokens gives other logits: Repeats keeps state outside",
    ),
    "draws numbers without torch": (
        f"{NORM}{KEEPS}    {BODY}self.gain * x * random.random()",
        "a second pass over the same tokens gives other logits: Repeats keeps state outside",
    ),
    "keeps its state in a buffer": (
        f"{NORM}{BUFFER}    def forward(self, x):\n        y = self.gain * x + self.past\n"
        "        self.past += 1\n        return y",
        None,
    ),
    "drops numbers": (f"{NORM}{KEEPS}    {BODY}torch.nn.functional.dropout(self.gain * x)", None),
    "looks ahead": (
        f"{NORM}{KEEPS}    {BODY}self.gain * x / x.square().mean(1, keepdim=True).sqrt()",
        "the model looks ahead: in training, later tokens move earlier logits by",
    ),
    "is not finite": (f"{NORM}{KEEPS}    {BODY}self.gain * x / 0", None),
    "has a parameter that every second one of it uses": (
        f"{NORM}{KEEPS}        type(self).made = getattr(type(self), 'made', 0) + 1\n"
        f"        self.used = type(self).made % 2\n    {BODY}self.gain * x if self.used else x",
        None,
    ),
    "has a parameter without a use": (
        f"{NORM}{KEEPS}    {BODY}x",
        "Repeats.gain gets no gradient in a pass over a few tokens",
    ),
}


@pytest.mark.parametrize("case", REPEATS)
def test_what_two_passes_show_of_a_model_is_said_and_leaves_the_model_as_it_was(case, tmp_path):
    code, said = REPEATS[case]
    name = f"repeats_{case.replace(' ', '_')}"
    write_plugin(tmp_path, "norm", name, code.replace("Broken", "Repeats"))
    config = compose([f"plugins={tmp_path}/mine", f"norm={name}", "model.depth=1", *SIZES])
    model = build_model(config, VOCABULARY)
    before = [tensor.clone() for tensor in model.state_dict().values()]
    state = torch.get_rng_state()
    lines = pass_warnings(model, VOCABULARY)
    assert [line[: len(said or "")] for line in lines] == ([said] if said else [])
    assert torch.equal(state, torch.get_rng_state())
    assert all(map(torch.equal, before, model.state_dict().values()))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("typed", "looks_ahead"),
    [
        (["model.dropout=0.1"], False),
        (["norm=batchnorm", "norm.allow_noncausal=true"], True),
        (["norm=batchnorm", "norm.allow_noncausal=true", "model.dropout=0.1"], True),
    ],
)
def test_dropout_and_running_averages_are_no_state_that_a_second_pass_shows(typed, looks_ahead):
    model = build_model(compose([*SIZES, "model.depth=1", *typed]), VOCABULARY)
    lines = pass_warnings(model, VOCABULARY)
    assert [line.partition(":")[0] for line in lines] == ["the model looks ahead"] * looks_ahead
