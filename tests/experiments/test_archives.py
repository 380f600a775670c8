"""The archive of a study gives back each byte that its runs recorded."""

import io
import json
import subprocess
import tarfile

import archives
import numpy as np
import packing
import pytest
import results

ROOT = results.HERE.parent
MOST = 45_000_000  # bytes of all files that are committed
ROWS = [
    {"step": 1, "probe/mean%/0": 0.00044906, "text": "one"},
    {"step": 1, "train/loss": 6.228710412979126, "grad_norm": float(np.float32(3.1449769))},
    {"step": 2, "train/loss": None, "grad_norm": float("nan")},
    {"step": 3, "train/loss": float("inf"), "grad_norm": float(np.float32(1e-38))},
    {"step": 1, "probe/mean%/0": -1e-12, "text": "two"},
    {},
]
LINES = "".join(f"{json.dumps(row)}\n" for row in ROWS)


@pytest.mark.parametrize(
    "rows",
    [LINES, "", LINES.removesuffix("\n"), "\n", '{"a": "b, c"}\n', '{"a":1}\n',
     '{"a": {"b": 1}}\n', '{"a": 1.5f}\n', '{"a": 1, "a": 2}\n', '{"a": "é"}\n{"é": [1, 2]}\r\n'],
)  # fmt: skip
def test_an_archive_gives_back_each_byte(rows, tmp_path):
    files = {"study/sweep-study.json": b"{}", "study/one/summary.json": b"\x00\xff"}
    files |= {f"study/{run}/metrics.jsonl": rows.encode() for run in ("one", "two")}
    files["study/three/metrics.jsonl"] = LINES.encode()
    archives.write_archive(tmp_path / "study.tar.xz", "study", files)
    found = archives.read_archive(tmp_path / "study.tar.xz")
    assert {str(path): data for path, data in found} == files


@pytest.mark.parametrize("name", ["../away", "/away", "study/../../away", "study/link"])
@pytest.mark.parametrize("kind", ["plain", "columns"])
def test_a_file_outside_the_folder_and_a_link_are_not_written(name, kind, tmp_path):
    head = json.dumps({"files": {name: []}, "kinds": [], "keys": []})
    member, data = (name, b"") if kind == "plain" else ("study/metrics.columns", head.encode())
    with tarfile.open(tmp_path / "study.tar.xz", "w:xz") as archive:
        info = tarfile.TarInfo(member)
        info.size = len(data)
        if name == "study/link":
            info.type, info.linkname, info.size = tarfile.SYMTYPE, "/etc/passwd", 0
        archive.addfile(info, io.BytesIO(data))
    with pytest.raises(ValueError, match="is not a file of a study"):
        packing.extract(tmp_path / "study.tar.xz", tmp_path / "runs" / "study")
    assert [*tmp_path.rglob("away"), *tmp_path.rglob("link")] == []


def test_what_is_committed_is_copied_quickly():
    if not (ROOT / ".git").exists():
        pytest.skip("needs a clone")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    assert sum(file.lstat().st_size for file in files if file.is_file()) < MOST


def test_a_packed_trial_has_no_probes_and_all_else_that_its_runs_recorded():
    run = {"stage": "tune", "folder": "one"}, {"stage": "result", "folder": "two"}
    files = {"study/sweep-a.json": json.dumps({"runs": run}).encode()}
    files |= {f"study/{name}/metrics.jsonl": LINES.encode() for name in ("one", "two")}
    found = packing.without_probes(dict(files))
    assert found["study/two/metrics.jsonl"] == LINES.encode()
    rows = [json.loads(line) for line in found["study/one/metrics.jsonl"].splitlines()]
    kept = [{k: v for k, v in row.items() if not k.startswith("probe/")} for row in ROWS]
    assert json.dumps(rows) == json.dumps(kept)
