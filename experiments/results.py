"""python experiments/results.py                 every table, figure and number here, written anew
python experiments/results.py pack runs/NAME   a study's runs, without weights: NAME/runs.tar.xz

What is committed of a study is what its runs recorded; the rest follows from that. Each study's
report is the one that `python -m transformer_norms.report` writes: its page, report.html, is not
committed, and lies beside the rest once this has run.
"""

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from claims import claims_table

from transformer_norms.analysis.init_gradients.asking import setting
from transformer_norms.analysis.init_gradients.figure import figure as figure_of_gradients
from transformer_norms.analysis.init_gradients.law import variants
from transformer_norms.analysis.init_gradients.measuring import measured
from transformer_norms.analysis.init_gradients.writing import cells as cells_of_gradients
from transformer_norms.analysis.init_gradients.writing import notes as notes_of_gradients
from transformer_norms.analysis.invariances.measuring import measured as invariances
from transformer_norms.analysis.invariances.page import files as files_of_invariances
from transformer_norms.analysis.norm_removal.cost import read
from transformer_norms.analysis.norm_removal.showing import figure, folding, gaps, rows
from transformer_norms.analysis.writing import markdown_grid
from transformer_norms.files import read_json
from transformer_norms.report import write_report
from transformer_norms.report.escape import markdown
from transformer_norms.report.findings import Findings
from transformer_norms.report.table import Table, audit_table, table

HERE = Path(__file__).parent
RUNS = "runs.tar.xz"
RECORDED = ("config.yaml", "metrics.jsonl", "summary.json")  # of a run; and sweep-*.json
# Of a report what is committed. In a README there is no room for all columns of its table.
FILES = ("table.md", "results.csv", "curves.svg", "rates.svg")
LEFT_OUT = ("missing", "median", "sign-flip", "correlation", "points")
FIRST_BLOCK = (
    "stream_rms/embedding", "branch_over_stream/attention/0", "branch_over_stream/mlp/0",
)  # fmt: skip
XIONG = [
    "norm=layernorm",  # the theorem's
    "placement=pre,post,deepnorm,sandwich,out,hybrid,normformer,mixln", "seed=range(0,10)"
]  # fmt: skip


def pack(study: Path) -> None:
    """The same runs are the same bytes. ValueError where a run has not ended, or none is there."""
    records = sorted(study.glob("sweep-*.json"))
    runs = sorted(file.parent for file in study.glob("*/summary.json"))
    for run in runs:
        if (status := read_json(run / "summary.json")["status"]) not in ("finished", "diverged"):
            raise ValueError(f"{run}: is {status}; run the sweep again")
    if not (runs and records):
        raise ValueError(f"{study}: is no study; there is no run, or no sweep's record")
    target = HERE / study.name / RUNS
    target.parent.mkdir(exist_ok=True)
    with tarfile.open(target, "w:xz", preset=9) as archive:
        for file in [*records, *(run / name for run in runs for name in RECORDED)]:
            member = tarfile.TarInfo(str(file.relative_to(study.parent)))
            member.size = file.stat().st_size
            with open(file, "rb") as data:
                archive.addfile(member, data)
    print(f"{target}: {len(runs)} runs, {target.stat().st_size:,} bytes", file=sys.stderr)


def regenerate() -> None:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for archive in sorted(HERE.glob(f"*/{RUNS}")):
            found[archive.parent.name] = _reported(archive, Path(folder))
    words = {"norm_removal": _removal(HERE / "norm_removal")}
    words["init_gradients"] = _init_gradients(HERE / "init_gradients")
    _invariances(HERE / "invariances")
    subprocess.run([sys.executable, HERE / "tinyshakespeare" / "collect.py"], check=True)
    _fill(HERE / "README.md", claims_table(HERE / "claims.yaml", found, words))


def _reported(archive: Path, folder: Path) -> Findings:
    """Of the runs in `archive`, whose report is written and put beside it."""
    study, home = archive.parent.name, archive.parent
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    path, findings = write_report([folder / study], folder / f"{study}-report")
    for name in (*FILES, "report.html"):
        if (path.parent / name).exists():
            shutil.copyfile(path.parent / name, home / name)
    _fill(home / "README.md", "\n\n".join(_blocks(findings)))
    return findings


def _blocks(findings: Findings) -> Iterator[str]:
    said = [markdown(findings.sentence(variant)) for variant in findings.study.variants]
    yield "\n".join(f"- {line}" for line in said)
    yield _grid(table(findings))
    if tuning := audit_table(findings.study):
        yield "Validation loss on the tuning seed at each rate:"
        yield _grid(tuning)
    if {"placement", "init"} & {*findings.study.axes}:
        yield (
            "Inside the first block at the first step (seed means): the rms of the embedded "
            "tokens, and how large what attention and mlp add is beside the stream it is added to:"
        )
        yield markdown_grid(
            [["variant", "embedding", "attention adds", "mlp adds"], *_inside(findings)]
        )


def _inside(findings: Findings) -> Iterator[list[str]]:
    keys = [f"probe/{key}" for key in FIRST_BLOCK]
    for variant in findings.study.variants:
        first = [next(row for row in run.metrics() if row["step"] == 1) for run in variant.ended]
        yield [variant.name, *(f"{fmean(row[key] for row in first):.3g}" for key in keys)]


def _grid(columns: Table) -> str:
    kept = {heading: cells for heading, cells in columns.items() if heading not in LEFT_OUT}
    return markdown_grid([list(kept), *map(list, zip(*kept.values(), strict=True))])


def _init_gradients(folder: Path) -> str:
    """Measured anew. What was found of the two placements for which there is a theorem."""
    asked = setting(XIONG, xiong=True)
    found = variants(asked, measured(asked.variants))
    (folder / "init_gradients.svg").write_bytes(figure_of_gradients(found, asked.depths))
    notes = "\n".join(f"- {markdown(note)}" for note in notes_of_gradients(asked, found))
    heads, cells = cells_of_gradients(asked, found)
    _fill(folder / "README.md", f"{markdown_grid([heads, *cells])}\n\n{notes}")
    laws = [(v.name, v.law) for v in found if v.bound is not None]
    return ", ".join(
        f"{name} {law.slope:+.2f} (95 % interval {law.slope - law.half:+.2f} to "
        f"{law.slope + law.half:+.2f})"
        for name, law in laws
        if law and law.half
    )


def _invariances(folder: Path) -> None:
    made = files_of_invariances(invariances())
    for name in ("invariances.html", "invariances.svg", "invariances.csv"):
        (folder / name).write_bytes(made[name])
    _fill(folder / "README.md", made["invariances.md"].decode().strip())


def _removal(folder: Path) -> str:
    """What was found, in a sentence."""
    costs = read(folder)
    (folder / "norm_removal.svg").write_bytes(figure(costs))
    said = "\n".join(f"- {line}" for line in (*gaps(costs), *folding(costs)))
    _fill(folder / "README.md", f"{said}\n\n{markdown_grid(rows(costs))}")
    return "; ".join(gaps(costs))


def _fill(file: Path, text: str) -> None:
    """Between its marks. ValueError where a README has none."""
    before = file.read_text()
    marked = re.search(r"<!-- results:[^>]*-->\n(.*?)<!-- /results -->", before, re.DOTALL)
    if marked is None:
        raise ValueError(f"{file}: there is no <!-- results: ... --> with its <!-- /results -->")
    file.write_text(before[: marked.start(1)] + text + "\n" + before[marked.end(1) :])


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        regenerate()
    elif arguments[0] == "pack" and len(arguments) > 1:
        try:
            for study in arguments[1:]:
                pack(Path(study))
        except (ValueError, OSError) as error:
            print(error, file=sys.stderr)
            return 2
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
