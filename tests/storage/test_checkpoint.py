"""Checkpoints: what loads is what was saved, and no damage goes unseen."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from transformer_norms.errors import NoUsableCheckpoint
from transformer_norms.run import checkpoint

RUN = "0123456789abcdef"
FILES = ["manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]
PAGE = 4096


def tensors(step: int) -> dict[str, dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(step)
    weight = torch.randn(40, 64, generator=draw)
    return {
        "model": {
            "weight": weight,
            "tied": weight,
            "half": weight.bfloat16(),
            "steps": torch.tensor(step),
        },
        "optimizer": {"weight.average": torch.rand(40, 64, generator=draw).double()},
    }


def save(folder: Path, step: int, keep: int = 9) -> Path:
    extra = {"data": "c0ffee", "chain": f"{step:x}"}
    return checkpoint.save(
        folder, RUN, step, tensors(step), {"step": step, "best": 1.5}, extra, keep
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / "checkpoints", 100)
    save(tmp_path / "checkpoints", 200)
    return tmp_path / "checkpoints"


def read(found: checkpoint.Checkpoint, name: str) -> dict[str, torch.Tensor]:
    with found.open(name) as file:
        return {key: file.get_slice(key)[...] for key in file.keys()}  # noqa: SIM118


def fallback(folder: Path) -> str:
    """The one warning, after the older checkpoint was taken instead of the newest."""
    warnings: list[str] = []
    found = checkpoint.newest(folder, RUN, warnings.append)
    assert found is not None
    assert found.step == 100
    assert len(warnings) == 1
    assert "\n" not in warnings[0]
    return warnings[0]


def test_what_loads_is_what_was_saved_bit_by_bit(folder: Path) -> None:
    found = checkpoint.newest(folder, RUN, pytest.fail)
    assert found is not None
    assert found.step == 200
    assert found.path == folder / "step-00000200"
    assert found.state == {"step": 200, "best": 1.5}
    assert found.extra == {"data": "c0ffee", "chain": "c8"}
    for name, group in tensors(200).items():
        loaded = read(found, name)
        assert loaded.keys() == group.keys()
        for key, tensor in group.items():
            assert loaded[key].dtype == tensor.dtype
            assert torch.equal(loaded[key], tensor)
    assert sorted(path.name for path in found.path.iterdir()) == FILES


def test_where_there_never_was_a_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path / "checkpoints", RUN, pytest.fail) is None


@pytest.mark.goal("C1")
@pytest.mark.parametrize("name", FILES)
def test_every_truncation_is_seen_and_the_one_before_is_used(
    folder: Path, name: str, measured: Callable[[str], None]
) -> None:
    path = folder / "step-00000200" / name
    whole = path.read_bytes()
    for part in range(20):
        path.write_bytes(whole[: len(whole) * part // 20])
        warning = fallback(folder)
        assert name in warning
        assert name == "manifest.json" or f"bytes instead of {len(whole)}" in warning
    measured("20 of 20 cuts of each file noticed")


@pytest.mark.goal("C2")
@pytest.mark.parametrize(
    ("flips", "pages"), [(60, 4), pytest.param(300, 100, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_and_zeroed_page_is_seen(
    folder: Path, name: str, flips: int, pages: int, measured: Callable[[str], None]
) -> None:
    path = folder / "step-00000200" / name
    whole = path.read_bytes()
    draw = random.Random(name)
    damages = []
    for _ in range(flips):
        position, bit = draw.randrange(len(whole)), 1 << draw.randrange(8)
        damages.append((position, bytes([whole[position] ^ bit])))
    for start in [0, *(draw.randrange(len(whole) - 9) for _ in range(pages - 1))]:
        damages.append((start, bytes(len(whole[start : start + PAGE]))))
    for start, new in damages:
        path.write_bytes(whole[:start] + new + whole[start + len(new) :])
        assert name in fallback(folder)
    measured(f"{flips} of {flips} flipped bits and {pages} of {pages} zeroed pages of each file")


@pytest.mark.goal("C3")
@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_and_a_file_of_another_step_are_named(folder: Path, name: str) -> None:
    file = folder / "step-00000200" / name
    shutil.copy(folder / "step-00000100" / name, file)
    fallback(folder)
    file.unlink()
    assert name in fallback(folder)


@pytest.mark.goal("C3")
def test_a_file_that_nobody_wrote_is_named(folder: Path) -> None:
    (folder / "step-00000200" / "model-2.safetensors").write_bytes(b"x")
    assert "model-2.safetensors" in fallback(folder)


def test_a_link_to_a_checkpoint_is_none(folder: Path) -> None:
    (folder / "step-00000200").rename(folder.parent / "step-00000200")
    (folder / "step-00000200").symlink_to(folder.parent / "step-00000200")
    assert "step-00000200 is no folder" in fallback(folder)


def test_a_link_is_no_file(folder: Path) -> None:
    path = folder / "step-00000200" / "model.safetensors"
    shutil.move(path, folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")
    assert "plain file" in fallback(folder)


@pytest.mark.goal("C3")
@pytest.mark.parametrize("name", ["step-00000300", "step-300", "step-00000200-copy"])
def test_a_renamed_step_is_refused(folder: Path, name: str) -> None:
    (folder / "step-00000200").rename(folder / name)
    if name == "step-00000300":
        fallback(folder)
    else:
        found = checkpoint.newest(folder, RUN, pytest.fail)
        assert found is not None
        assert found.step == 100


@pytest.mark.goal("C4")
def test_when_all_are_bad_it_says_so_and_deletes_nothing(folder: Path) -> None:
    for path in folder.glob("*/model.safetensors"):
        path.write_bytes(b"")
    before = sorted(folder.rglob("*"))
    warnings: list[str] = []
    with pytest.raises(NoUsableCheckpoint, match="none of 2 checkpoints"):
        checkpoint.newest(folder, RUN, warnings.append)
    assert len(warnings) == 2
    assert sorted(folder.rglob("*")) == before


def test_the_newest_are_kept_and_damaged_ones_of_an_abandoned_future_do_not_count(
    folder: Path,
) -> None:
    save(folder, 300)
    (folder / "step-00000300" / "state.json").write_bytes(b"{}")
    save(folder, 250, keep=2)
    assert _steps(folder) == [200, 250, 300]
    save(folder, 300, keep=2)
    assert _steps(folder) == [250, 300]
    found = checkpoint.newest(folder, RUN, pytest.fail)
    assert found is not None
    assert found.step == 300


def _steps(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.iterdir())


@pytest.mark.goal("C5")
def test_a_kill_while_a_checkpoint_is_removed_leaves_no_half_of_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(path: Path, **_: object) -> None:
        for file in path.glob("model*"):
            file.unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", kill)
    with pytest.raises(KeyboardInterrupt):
        save(folder, 300, keep=1)
    left = sorted(folder.glob("step-*"))
    assert [path.name for path in left] == ["step-00000100", "step-00000300"]
    assert [checkpoint.verify(path).step for path in left] == [100, 300]


def test_a_step_that_verifies_is_not_written_again(folder: Path) -> None:
    before = (folder / "step-00000200" / "manifest.json").stat()
    save(folder, 200)
    after = (folder / "step-00000200" / "manifest.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_weights_only_still_verifies(folder: Path) -> None:
    path = folder / "step-00000200"
    checkpoint.drop(path, "optimizer")
    checkpoint.drop(path, "optimizer")
    found = checkpoint.verify(path)
    assert torch.equal(read(found, "model")["weight"], tensors(200)["model"]["weight"])
    with pytest.raises(ValueError, match="optimizer.safetensors"):
        read(found, "optimizer")
    assert sorted(file.name for file in path.iterdir()) == [
        "manifest.json",
        "model.safetensors",
        "state.json",
    ]


def test_a_kill_while_weights_only_are_made_is_harmless(folder: Path) -> None:
    path, optimizer = folder / "step-00000200", folder / "step-00000200" / "optimizer.safetensors"
    whole = optimizer.read_bytes()
    checkpoint.drop(path, "optimizer")
    optimizer.write_bytes(whole)
    checkpoint.verify(path)
    checkpoint.drop(path, "optimizer")
    assert not optimizer.exists()
