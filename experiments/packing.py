"""Packs the runs of a study into its home here, and unpacks them."""

import json
import re
import sys
from pathlib import Path

from archives import read_archive, write_archive

from transformer_norms.storage.reading import read_json

HERE = Path(__file__).parent
RUNS, UNFINISHED = "runs.tar.xz", "unfinished.tar.xz"
RECORDED = ("config.yaml", "metrics.jsonl", "summary.json")  # of a run; and sweep-*.json
_PROBE = re.compile(rb', "probe/[^"]+": [^,}]+')


def find_homes() -> dict[str, Path]:
    """The folder of each study by its name, in the order of the names. Those in earlier/ are
    superseded."""
    folders = [file.parent for file in HERE.glob("**/README.md") if file.parent != HERE]
    return {folder.name: folder for folder in sorted(folders, key=lambda folder: folder.name)}


def pack(study: Path, *, unfinished: bool = False) -> None:
    """The same runs are the same bytes. A run that has not ended is left out of an unfinished
    study. ValueError where one has not ended otherwise, or where none is there."""
    records = sorted(study.glob("sweep-*.json"))
    runs = []
    for file in sorted(study.glob("*/summary.json")):
        if (status := read_json(file)["status"]) in ("finished", "diverged"):
            runs.append(file.parent)
        elif not unfinished:
            raise ValueError(f"{file.parent}: is {status}; run the sweep again")
    if not (runs and records):
        raise ValueError(f"{study}: is no study; there is no run, or no sweep's record")
    home = find_homes().get(study.name, HERE / study.name)
    target = home / (UNFINISHED if unfinished else RUNS)
    target.parent.mkdir(exist_ok=True)
    files = [*records, *(run / name for run in runs for name in RECORDED)]
    named = {str(file.relative_to(study.parent)): file.read_bytes() for file in files}
    write_archive(target, study.name, without_probes(named))
    if not unfinished:
        (target.parent / UNFINISHED).unlink(missing_ok=True)
    print(f"{target}: {len(runs)} runs, {target.stat().st_size:,} bytes", file=sys.stderr)


def without_probes(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files of a study by name, without what was measured inside the models of its trials: no
    report shows it, and it was a third of all bytes."""
    records = [json.loads(data) for name, data in files.items() if "/sweep-" in name]
    trials = {
        run["folder"] for one in records for run in one.get("runs", ()) if run["stage"] == "tune"
    }
    for name in files:
        if name.endswith("metrics.jsonl") and Path(name).parent.name in trials:
            files[name] = _PROBE.sub(b"", files[name])
    return files


def unpack(name: str) -> None:
    """ValueError where the study has no packed runs, or where runs/NAME is there already."""
    home = find_homes().get(name, HERE / name)
    archives = [home / RUNS, home / UNFINISHED]
    archive = next((archive for archive in archives if archive.exists()), None)
    if archive is None:
        raise ValueError(f"{name}: there are no packed runs in {home}")
    if (folder := Path("runs") / name).exists():
        raise ValueError(f"{folder}: is there already; move it away first")
    extract(archive, folder.parent)
    print(f"{folder}: the sweep's command goes on from here", file=sys.stderr)


def extract(archive: Path, folder: Path) -> None:
    for path, data in read_archive(archive):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
