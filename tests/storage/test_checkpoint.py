"""Checkpoints: what loads is what was saved, and no damage goes unseen."""

import random
import shutil

import pytest
import torch
from checkpoints import RUN, newest, read, save, tensors

from transformer_norms.errors import NoUsableCheckpoint
from transformer_norms.run import checkpoint

FILES = ["manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]
PAGE = 4096


@pytest.fixture
def folder(tmp_path):
    return save(tmp_path / "checkpoints", 100).parent


@pytest.fixture(autouse=True)
def last(folder):
    return save(folder, 200)


def fallback(folder):
    """The one warning, after the older checkpoint was taken instead of the newest."""
    warnings = []
    assert newest(folder, warnings.append) == 100
    (warning,) = warnings
    assert "\n" not in warning
    return warning


def steps(folder):
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


def test_what_loads_is_what_was_saved_bit_by_bit(folder, last):
    assert newest(folder) == 200
    found = checkpoint.newest(folder, RUN, pytest.fail)
    assert (found.path, found.state) == (last, {"step": 200, "best": 1.5})
    assert found.extra == {"data": "c0ffee", "chain": "c8"}
    assert sorted(path.name for path in last.iterdir()) == FILES
    assert checkpoint.newest(folder / "elsewhere", RUN, pytest.fail) is None  # nor was there one


@pytest.mark.goal("C1")
@pytest.mark.parametrize("name", FILES)
def test_every_truncation_is_seen_and_the_one_before_is_used(folder, last, name, measured):
    whole = (last / name).read_bytes()
    for part in range(20):
        (last / name).write_bytes(whole[: len(whole) * part // 20])
        warning = fallback(folder)
        assert name in warning
        assert name == "manifest.json" or f"bytes instead of {len(whole)}" in warning
    measured("20 of 20 cuts of each file noticed")


@pytest.mark.goal("C2")
@pytest.mark.parametrize(
    ("flips", "pages"), [(60, 4), pytest.param(300, 100, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_and_zeroed_page_is_seen(folder, last, name, flips, pages, measured):
    whole = (last / name).read_bytes()
    draw = random.Random(name)
    at = [draw.randrange(len(whole)) for _ in range(flips)]
    damages = [(start, bytes([whole[start] ^ 1 << draw.randrange(8)])) for start in at]
    at = [0, *(draw.randrange(len(whole) - 9) for _ in range(pages - 1))]
    damages += [(start, bytes(len(whole[start : start + PAGE]))) for start in at]
    for start, new in damages:
        (last / name).write_bytes(whole[:start] + new + whole[start + len(new) :])
        assert name in fallback(folder)
    measured(f"{flips} of {flips} flipped bits and {pages} of {pages} zeroed pages of each file")


@pytest.mark.goal("C3")
@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_and_a_file_of_another_step_are_named(folder, last, name):
    shutil.copy(folder / "step-00000100" / name, last)
    fallback(folder)
    (last / name).unlink()
    assert name in fallback(folder)


def link_to(path):
    """Puts a link in the place of a file or folder, which lies elsewhere then."""
    path.symlink_to(shutil.move(path, path.parents[2] / "elsewhere"))


SPOILED = [
    (lambda last: (last / "model-2.safetensors").write_bytes(b"x"), "model-2.safetensors"),
    (link_to, "step-00000200 is not a folder"),
    (lambda last: link_to(last / "model.safetensors"), "model.safetensors"),
    (lambda last: last.rename(last.with_name("step-00000300")), "its manifest is of step 200"),
]


@pytest.mark.goal("C3")
@pytest.mark.parametrize(("spoil", "said"), SPOILED)
def test_a_file_that_nobody_wrote_a_link_and_a_renamed_step_are_named(folder, last, spoil, said):
    spoil(last)
    assert said in fallback(folder)


@pytest.mark.goal("C3")
@pytest.mark.parametrize("name", ["step-300", "step-00000200-copy"])
def test_a_name_that_only_resembles_that_of_a_checkpoint_comes_last(folder, last, name):
    last.rename(folder / name)
    assert newest(folder) == 100


@pytest.mark.goal("C4")
def test_when_all_are_bad_it_says_so_and_deletes_nothing(folder):
    for path in folder.glob("*/model.safetensors"):
        path.write_bytes(b"")
    before = sorted(folder.rglob("*"))
    warnings = []
    with pytest.raises(NoUsableCheckpoint, match="none of 2 checkpoints"):
        newest(folder, warnings.append)
    assert len(warnings) == 2
    assert sorted(folder.rglob("*")) == before


def test_the_newest_are_kept_and_damaged_ones_of_an_abandoned_future_do_not_count(folder):
    (save(folder, 300) / "state.json").write_bytes(b"{}")
    save(folder, 250, keep=2)
    assert steps(folder) == [200, 250, 300]
    save(folder, 300, keep=2)
    assert steps(folder) == [250, 300]
    assert newest(folder) == 300


@pytest.mark.goal("C5")
def test_a_kill_while_a_checkpoint_is_removed_leaves_no_half_of_it(folder, monkeypatch):
    def kill(path, **_):
        (path / "model.safetensors").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", kill)
    with pytest.raises(KeyboardInterrupt):
        save(folder, 300, keep=1)
    assert steps(folder) == [100, 300]
    assert [checkpoint.verify(path).step for path in sorted(folder.glob("step-*"))] == [100, 300]


def test_a_checkpoint_without_its_optimizer_still_verifies_and_says_what_it_lacks(last):
    (last / "optimizer.safetensors").unlink()
    found = checkpoint.verify(last)
    assert torch.equal(read(found, "model")["weight"], tensors(200)["model"]["weight"])
    with pytest.raises(ValueError, match="optimizer.safetensors"):
        read(found, "optimizer")
