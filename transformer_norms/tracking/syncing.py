"""Mirrors once, late, what is missing of a run folder or of a study's report."""

from pathlib import Path

from transformer_norms.tracking.report import ReportMirror
from transformer_norms.tracking.run import RunMirror

AnyMirror = RunMirror | ReportMirror


def mirror_of(folder: Path, mode: str) -> AnyMirror:
    """A run folder's, or else that of a study's report."""
    is_run = any((folder / name).is_file() for name in ("summary.json", "metrics.jsonl"))
    return RunMirror(folder, mode) if is_run else ReportMirror(folder, mode)


def mirror_once(folder: Path, mode: str) -> str:
    """All that is missing; says what was done. RuntimeError says why not."""
    one = mirror_of(folder, mode)
    if not one.claim():
        return "another process is mirroring it"
    try:
        if mode == "online":
            one.upload()
        one.poll(last=True)
    finally:
        one.close()
    if one.problem:
        raise RuntimeError(one.problem)
    if not one.waiting():
        return one.done()
    if mode == "online":
        raise RuntimeError(f"{one.done()}, but W&B is not reached: {one.home / 'mirror.log'}")
    return f"{one.done()}; its upload waits for `sync` online"
