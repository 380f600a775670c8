"""A checkpoint belongs to its run: what another run sealed, or what anybody sealed again with other
names, shapes, types or ranges, is passed over before anything of it is restored."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from run_folders import tree
from safetensors.torch import load_file

from transformer_norms import compose, load, train
from transformer_norms.config.building import build_model, build_trainer
from transformer_norms.errors import NoUsableCheckpoint
from transformer_norms.run import checkpoint
from transformer_norms.sample import main as sample
from transformer_norms.storage.manifest import seal_manifest
from transformer_norms.training.stopping import Stopping
from transformer_norms.training.trainer import Trainer

TYPED = (
    "model=nano model.width=8 model.heads=2 model.depth=1 model.context=8 data=stories "
    "data.documents=300 tokenizer=byte data.val_tokens=200 tracking=none trainer.steps=8 "
    "trainer.batch_size=2 trainer.eval_every=4 trainer.log_every=1 trainer.checkpoint_every=2 "
    "trainer.keep=9 trainer.threads=1 trainer.probe_every=2 schedule.warmup=2"
).split()
FIRST, NEWEST = "step-00000002", "step-00000004"


def go(*typed):
    """A run; what is given here replaces what TYPED says of the same key."""
    keys = dict(text.split("=", 1) for text in [*TYPED, *typed])
    return train(compose([f"{key}={value}" for key, value in keys.items()]))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, cache):
    """Unfinished runs of seeds 0 and 7, with checkpoints of steps 2 and 4, and the whole of 0."""
    home, before, step = tmp_path_factory.mktemp("home"), os.getcwd(), Trainer.train_step
    os.chdir(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer_norms.run.run.draw_curve", lambda *_: None)
        go("study=whole")
        entered, enter = [], Stopping.__enter__

        def train_step(self):
            reason = step(self)
            entered[-1].asked = self.step == 4
            return reason

        patch.setattr(Trainer, "train_step", train_step)
        patch.setattr(Stopping, "__enter__", lambda self: entered.append(self) or enter(self))
        for seed in (0, 7):
            assert go(f"seed={seed}")["status"] == "preempted"
    yield home
    os.chdir(before)


@pytest.fixture
def home(runs, tmp_path, monkeypatch):
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_of(seed, study="main"):
    (folder,) = Path("runs", study).glob(f"*-s{seed}-*")
    return folder


def newest_of(seed):
    return run_of(seed) / "checkpoints" / NEWEST


def reseal(path, **changed):
    """Seals whatever lies in a checkpoint's folder, as anybody can. A value of None is left out."""
    manifest = json.loads((path / "manifest.json").read_bytes())
    del manifest["sha256"]
    names = sorted(file.name for file in path.iterdir() if file.name != "manifest.json")
    data = {name: (path / name).read_bytes() for name in names}
    manifest["files"] = {
        name: {"sha256": hashlib.sha256(each).hexdigest(), "size": len(each)}
        for name, each in data.items()
    }
    manifest = {key: value for key, value in (manifest | changed).items() if value is not None}
    (path / "manifest.json").write_bytes(seal_manifest(manifest))


def edit_tensors(name, edit):
    def act(path):
        tensors = safetensors.numpy.load_file(path / name)
        edit(tensors)
        safetensors.numpy.save_file(tensors, path / name)

    return act


def edit_state(**changed):
    def act(path):
        state = json.loads((path / "state.json").read_bytes()) | changed
        state = {key: value for key, value in state.items() if value is not ...}
        (path / "state.json").write_text(json.dumps(state))

    return act


def edit_rule(**changed):
    def act(path):
        rule = json.loads((path / "state.json").read_bytes())["divergence"] | changed
        edit_state(divergence={k: v for k, v in rule.items() if v is not ...})(path)

    return act


def write_state(text):
    return lambda path: (path / "state.json").write_text(text)


def overlap(path):
    """Lets two tensors of one size lie at one place, and cuts off the end that nobody wants."""
    file = path / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    (last, about) = max(header.items(), key=lambda item: item[1]["data_offsets"])
    twin = next(k for k, v in header.items() if v["shape"] == about["shape"] and k != last)
    header[last] = header[twin]
    text = json.dumps(header).encode()
    body = data[8 + length :][: about["data_offsets"][0]]
    file.write_bytes(len(text).to_bytes(8, "little") + text + body)


WEIGHT, GAIN = "embedding.weight", "final.gain"
MOMENT = f"{WEIGHT}:exp_avg"
NAN = np.float32("nan")


def rename(tensors, old, new):
    tensors[new] = tensors.pop(old)


def put(tensors, name, value):
    tensors[name] = value


MODEL = {
    "another name": (lambda t: rename(t, WEIGHT, "embedding.wait"), "lacks embedding.weight"),
    "a missing tensor": (lambda t: t.pop(WEIGHT), "lacks embedding.weight"),
    "no tensors": (lambda t: t.clear(), "more tensors"),
    "another tensor": (lambda t: put(t, "x\x1b[2J", t[WEIGHT]), r"has x\x1b[2J"),
    "another shape": (lambda t: put(t, WEIGHT, t[WEIGHT].T), "embedding.weight is F32 [8, 257]"),
    "fewer numbers": (lambda t: put(t, WEIGHT, t[WEIGHT][:-1]), "embedding.weight is F32 [256, 8]"),
    "another type": (lambda t: put(t, WEIGHT, t[WEIGHT].astype("f2")), "embedding.weight is F16"),
    "integers": (lambda t: put(t, WEIGHT, t[WEIGHT].astype("i4")), "embedding.weight is I32"),
    "NaN": (lambda t: put(t, WEIGHT, t[WEIGHT] * NAN), "embedding.weight holds NaN"),
    "an infinity": (
        lambda t: put(t, GAIN, t[GAIN] * np.float32("inf")),
        "final.gain holds NaN or an",
    ),
}
OPTIMIZER = {
    "a missing moment": (lambda t: t.pop(MOMENT), f"lacks {MOMENT}"),
    "a missing count": (lambda t: t.pop(f"{WEIGHT}:step"), f"lacks {WEIGHT}:step"),
    "all of a parameter": (
        lambda t: [t.pop(key) for key in list(t) if key.startswith(WEIGHT)],
        "and 2 more tensors",
    ),
    "nothing": (lambda t: t.clear(), "lacks"),
    "another part": (lambda t: rename(t, MOMENT, f"{WEIGHT}:avg"), f"lacks {MOMENT}"),
    "a part more": (lambda t: put(t, f"{WEIGHT}:max", t[MOMENT]), f"has {WEIGHT}:max"),
    "no parameter": (lambda t: put(t, "nobody:step", t[MOMENT]), "has nobody:step"),
    "no colon": (lambda t: put(t, "nobody", t[MOMENT]), "has nobody"),
    "another shape": (lambda t: put(t, MOMENT, t[MOMENT][:1]), f"{MOMENT} is F32 [1, 8]"),
    "another type": (lambda t: put(t, MOMENT, t[MOMENT].astype("f8")), f"{MOMENT} is F64"),
    "NaN": (lambda t: put(t, MOMENT, t[MOMENT] * NAN), f"{MOMENT} holds NaN"),
}
STATE = {
    "step 10^17": (edit_state(step=10**17), "step: is 100000000000000000"),
    "a negative step": (edit_state(step=-1), "step: input should be greater"),
    "a step in words": (edit_state(step="four"), "step: input should be a valid integer"),
    "half a step": (edit_state(step=4.5), "step: input should be a valid integer"),
    "true steps": (edit_state(step=True), "step: input should be a valid integer"),
    "no step": (edit_state(step=...), "step: field required"),
    "no losses": (edit_state(losses=...), "losses: field required"),
    "nothing": (write_state("{}"), "field required"),
    "a list": (write_state("[]"), "holds no object"),
    "NaN": (write_state('{"step": NaN}'), "not readable as JSON"),
    "another key": (edit_state(rng="x"), "rng: unexpected keyword argument"),
    "words for losses": (edit_state(losses="12"), "losses: input should be a valid array"),
    "losses of no step": (edit_state(losses=[1.0] * 5), "more rows or losses than step 4"),
    "an infinite loss": (edit_state(losses=[1e300]), "losses.0: input should be less"),
    "negative tokens": (edit_state(tokens=-1), "tokens: input should be greater"),
    "negative time": (edit_state(seconds=-1.0), "seconds: input should be greater"),
    "a chain of words": (edit_state(chain="../x"), "chain: string should match"),
    "a best in words": (edit_state(best="low"), "best: input should be a valid number"),
    "rows of the future": (edit_state(written=5), "more rows or losses than step 4"),
    "written rows in words": (edit_state(written="all"), "written: input should be a valid"),
    "a probe that is a step": (edit_state(probed={"step": 1.0}), "probed.step"),
    "a window too long": (edit_rule(recent=[1.0] * 129), "recent: list should have at most 128"),
    "a window of the future": (edit_rule(recent=[1.0] * 6), "longer than step 4 can have"),
    "a window of words": (edit_rule(recent=["1"]), "recent.0: input should be a valid number"),
    "no window": (edit_rule(recent=...), "divergence.recent: field required"),
    "endless patience": (edit_rule(above=-(10**9)), "above: input should be greater"),
    "no rule": (edit_state(divergence=None), "divergence"),
    "no such parameter": (edit_state(untouched=["nobody"]), "untouched: names nobody"),
}
HOSTILE = {
    **{f"model: {k}": (edit_tensors("model.safetensors", e), w) for k, (e, w) in MODEL.items()},
    **{
        f"optimizer: {k}": (edit_tensors("optimizer.safetensors", e), w)
        for k, (e, w) in OPTIMIZER.items()
    },
    "optimizer: weights only": (
        lambda path: (path / "optimizer.safetensors").unlink(),
        "keeps weights only",
    ),
    "model: overlapping tensors": (overlap, "model.safetensors"),
    **{f"state: {k}": case for k, case in STATE.items()},
}


def tensors_of(trainer):
    groups = trainer.tensors().values()
    return {key: tensor.clone() for group in groups for key, tensor in group.items()}


@pytest.fixture(scope="module")
def trainer(runs):
    config = compose(TYPED)
    return build_trainer(config, build_model(config, 257), lambda step: None, lambda: ())


def resume(trainer, seed=0):
    """The step from which the trainer would go on, and the lines that are said."""
    lines, wanted = [], trainer.wanted()
    identity = json.loads((run_of(seed) / "summary.json").read_text())["identity"]
    folder = run_of(seed) / "checkpoints"
    found = checkpoint.newest(
        folder,
        identity,
        lines.append,
        lambda saved: checkpoint.check(saved, wanted),
        wanted.sizes(),
    )
    assert all("\n" not in line and "\x1b" not in line for line in lines)
    return found.path.name, lines


@pytest.mark.goal("C3")
@pytest.mark.parametrize("what", HOSTILE)
def test_what_was_sealed_again_is_passed_over_before_anything_is_restored(
    home, trainer, what, measured
):
    act, words = HOSTILE[what]
    before, state = tensors_of(trainer), trainer.state()
    act(newest_of(0))
    reseal(newest_of(0))
    found, (line,) = resume(trainer)
    assert found == FIRST
    assert words in line
    assert NEWEST in line
    after = tensors_of(trainer)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert trainer.state() == state
    measured(f"{len(HOSTILE)} of {len(HOSTILE)} hostile checkpoints passed over")


def test_what_a_run_saves_is_what_it_wants(home, trainer):
    assert resume(trainer) == (NEWEST, [])


@pytest.mark.goal("C6")
def test_a_run_that_was_killed_before_it_pruned_does_so_when_it_goes_on(home, monkeypatch):
    kept = []
    restore = Trainer.restore

    def restored(self, *given):
        kept.extend(sorted(path.name for path in (run_of(0) / "checkpoints").iterdir()))
        restore(self, *given)

    monkeypatch.setattr(Trainer, "restore", restored)
    go("trainer.keep=1")
    assert kept == [NEWEST]


def finish_like_the_whole(folder):
    """The weights, moments and rows of an undisturbed run, bit by bit."""
    for name in ("model", "optimizer"):
        one, other = (
            load_file(run / "checkpoints" / "step-00000008" / f"{name}.safetensors")
            for run in (folder, run_of(0, "whole"))
        )
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    rows, expected = (
        [
            {key: value for key, value in json.loads(line).items() if key != "seconds"}
            for line in (run / "metrics.jsonl").read_text().splitlines()
        ]
        for run in (folder, run_of(0, "whole"))
    )
    assert rows == expected


@pytest.mark.goal("C1")
@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json"])
def test_a_run_whose_newest_checkpoint_is_cut_goes_on_from_the_one_before_and_ends(
    home, name, capfd
):
    file = newest_of(0) / name
    os.truncate(file, file.stat().st_size // 2)
    assert go()["status"] == "finished"
    said = capfd.readouterr().err
    assert [str(file) in line for line in said.splitlines()].count(True) == 1
    assert "goes on from step 2" in said
    finish_like_the_whole(run_of(0))


@pytest.mark.goal("C3")
def test_a_checkpoint_of_another_run_is_refused_and_the_one_before_is_used(home, capfd):
    foreign = newest_of(7)
    shutil.rmtree(newest_of(0))
    shutil.copytree(foreign, newest_of(0))
    later = newest_of(0).with_name("step-00000008")
    shutil.copytree(foreign, later)
    edit_state(step=8)(later)
    reseal(later, step=8)
    summary = go()
    said = capfd.readouterr().err
    assert said.count("is of another run") == 2
    assert "goes on from step 2" in said
    assert summary["status"] == "finished"
    # A checkpoint of another run is replaced where this run comes to its step.
    finish_like_the_whole(run_of(0))


@pytest.mark.goal("C4")
@pytest.mark.parametrize("name", [FIRST, NEWEST])
def test_a_run_with_nothing_but_checkpoints_of_another_is_an_error(home, name):
    folder, foreign = run_of(0) / "checkpoints", run_of(7) / "checkpoints" / name
    shutil.rmtree(folder)
    shutil.copytree(foreign, folder / name)
    before = tree(run_of(0))
    with pytest.raises(NoUsableCheckpoint, match="none of 1 checkpoints can be used"):
        go()
    with pytest.raises(NoUsableCheckpoint, match="none of 1"):
        load(run_of(0))
    assert sample([str(run_of(0)), "--prompt", "a"]) == 3
    assert tree(run_of(0)) == before  # its summary too: nothing was run


def test_a_run_whose_origin_has_no_checkpoint_that_can_be_used_is_not_begun(home):
    origin = run_of(0, "whole")
    for path in (origin / "checkpoints").iterdir():
        os.truncate(path / "model.safetensors", 99)
    before = tree("runs")
    with pytest.raises(NoUsableCheckpoint, match="none of 4 checkpoints can be used"):
        go(f"continue_from={origin}", "trainer.steps=10", "study=longer")
    assert tree("runs") == before
    assert list(Path("runs/longer").iterdir()) == []


def test_a_renamed_folder_of_another_run_is_refused(home):
    name = run_of(0).name
    shutil.rmtree(run_of(0))
    run_of(7).rename(run_of(7).with_name(name))
    before = sorted(Path("runs").rglob("*"))
    with pytest.raises(NoUsableCheckpoint, match="holds another run"):
        go()
    assert sorted(Path("runs").rglob("*")) == before
    assert load(Path("runs/main", name))  # which may lie anywhere, under any name


@pytest.mark.parametrize("step", [10**17, 9, -1])
def test_a_step_that_the_run_has_not_is_refused_by_all_readers(home, trainer, step):
    path = newest_of(0).with_name(f"step-{step:08d}")
    newest_of(0).rename(path)
    edit_state(step=step)(path)
    reseal(path, step=step)
    found, lines = resume(trainer)
    assert found == FIRST
    assert len(lines) == (step > 0)  # a negative one is no name of a checkpoint
    first = load_file(run_of(0) / "checkpoints" / FIRST / "model.safetensors")
    assert torch.equal(load(run_of(0)).embedding.weight, first[WEIGHT])


@pytest.mark.parametrize(
    "changed",
    [{"identity": None}, {"identity": 7}, {"identity": "x" * 16}, {"schema": 3}, {"schema": "2"},
     {"schema": 1}],
)  # fmt: skip
def test_a_manifest_without_a_run_is_refused(home, trainer, changed):
    reseal(newest_of(0), **changed)
    found, lines = resume(trainer)
    assert (found, len(lines)) == (FIRST, 1)


@pytest.mark.parametrize("name", ["model: NaN", "model: another name", "model: another type"])
def test_loading_passes_over_what_was_sealed_again(home, name, capfd):
    act, words = HOSTILE[name]
    act(newest_of(0))
    reseal(newest_of(0))
    first = load_file(run_of(0) / "checkpoints" / FIRST / "model.safetensors")
    assert torch.equal(load(run_of(0)).embedding.weight, first[WEIGHT])
    assert words in capfd.readouterr().err


@pytest.mark.goal("X7")
@pytest.mark.parametrize("name", ["model", "optimizer"])
def test_eight_sealed_gigabytes_are_refused_by_their_size_and_not_read(home, trainer, name, capfd):
    file = newest_of(0) / f"{name}.safetensors"
    os.truncate(file, 8 << 30)
    manifest = json.loads((newest_of(0) / "manifest.json").read_bytes())
    manifest["files"][file.name]["size"] = 8 << 30
    (newest_of(0) / "manifest.json").write_bytes(seal_manifest(manifest))
    found, (line,) = resume(trainer)
    assert found == FIRST
    assert f"{file}: {8 << 30} bytes, and this run's has" in line
    if name == "model":
        load(run_of(0))
        assert f"{file}: {8 << 30} bytes" in capfd.readouterr().err


def test_a_run_continues_from_its_origins_newest_checkpoint_that_can_be_used(home, capfd):
    origin = run_of(0, "whole")
    last = origin / "checkpoints" / "step-00000008"
    shutil.rmtree(last)
    shutil.copytree(newest_of(7), last)
    edit_state(step=8)(last)
    reseal(last, step=8)
    go(f"continue_from={origin}", "trainer.steps=10", "study=longer")
    said = capfd.readouterr().err
    assert "step-00000008 is of another run" in said
    assert "goes on from step 6" in said


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_what_an_optimizer_keeps_is_known_before_its_first_step(runs, optimizer):
    """from a step with stand-ins, which changes no weight and leaves nothing behind"""
    config = compose([*TYPED, f"optimizer={optimizer}"])
    model = build_model(config, 257)
    batch = torch.arange(18).reshape(2, 9)
    fresh = build_trainer(config, model, lambda step: batch, lambda: ())
    before = tensors_of(fresh)
    kept = fresh.wanted().kept
    assert all(torch.equal(before[name], tensor) for name, tensor in tensors_of(fresh).items())
    assert not any(o.state for o in fresh.optimizers)
    assert all(p.grad is None for p in model.parameters())
    fresh.train_step()
    saved = fresh.tensors()["optimizer"]
    expected = {
        f"{name}:{part}": (stored.dtype, stored.shape)
        for name, parts in kept.items()
        for part, stored in parts.items()
    }
    assert {name: ("F32", tuple(t.shape)) for name, t in saved.items()} == expected
    assert fresh.state()["untouched"] == []
