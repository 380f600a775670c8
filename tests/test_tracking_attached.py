"""What is no row of metrics comes to W&B as well: once, and again only when it has changed."""

import os
from math import nan
from pathlib import Path

import pytest
from transformer_norms.mirror import charts, report
from wandb_stand_in import StandIn, metrics, set_status, stand_in, study, write

from transformer_norms import files
from transformer_norms.sweep.drive import Mirrors
from transformer_norms.tracking import mirror as tracking
from transformer_norms.tracking.report import ReportMirror
from transformer_norms.tracking.run import RunMirror
from transformer_norms.tracking.syncing import mirror_once
from transformer_norms.training.measures import Place

pytestmark = pytest.mark.area("trust")

RESULTS = "run,status,val_loss\na,finished,2.5\nb,diverged,\nc,finished,2.6\n"


def views(stand_in: StandIn) -> list[str]:
    return [key for _, row in stand_in.rows() for key in row if key.startswith("view/")]


def draw(folder: Path) -> None:
    (folder / "curve.svg").write_text('<?xml version="1.0"?>\n<svg xmlns="..."></svg>\n')


def sync(folder: Path) -> None:
    assert tracking.main(["sync", str(folder), "--mode", "offline"]) == 0


def test_the_curve_and_what_was_probed_come_once_and_after_all_rows(
    study: Path, stand_in: StandIn, metrics: files.MetricsFile
) -> None:
    write(metrics, range(1, 4))
    metrics.append({"step": 4, "tokens": 8, "probe/stream_rms/0": 2.0})
    draw(study / "run")
    mirror_once(study / "run", "offline")
    assert views(stand_in) == []
    set_status(study / "run", "finished")
    mirror_once(study / "run", "offline")
    mirror_once(study / "run", "offline")
    assert sorted(views(stand_in)) == ["view/curve", "view/probes"]
    assert stand_in.rows()[-1] == (5, {"view/curve": "Html", "view/probes": "Html"})


def test_a_live_mirror_waits_for_the_curve_and_sync_brings_a_late_one(
    study: Path, stand_in: StandIn, metrics: files.MetricsFile
) -> None:
    write(metrics, range(1, 4))
    set_status(study / "run", "finished")
    one = RunMirror(study / "run", "offline")
    assert not one.poll()
    os.utime(study / "run" / "summary.json", (1, 1))  # it was not drawn, then
    assert one.poll()
    one.close()
    assert views(stand_in) == []
    draw(study / "run")
    sync(study / "run")
    sync(study / "run")
    assert views(stand_in) == ["view/curve"]


def test_probes_are_hidden_from_automatic_panels_each_by_its_own_name(
    study: Path, stand_in: StandIn, metrics: files.MetricsFile
) -> None:
    metrics.append({"step": 1, "tokens": 8, "probe/gradient_norm/mlp.up/0": 2.0, "lr": 0.1})
    mirror_once(study / "run", "offline")
    hidden = {"step_metric": "tokens", "hidden": True}
    everything = {"step_metric": "tokens"}
    assert stand_in.defined == {"*": everything, "probe/gradient_norm/mlp.up/0": hidden}


def test_a_report_comes_once_and_again_when_it_has_changed(
    study: Path, stand_in: StandIn, metrics: files.MetricsFile
) -> None:
    write(metrics, range(1, 3))
    sync(study)
    assert views(stand_in) == []
    (study / "results.csv").write_text(RESULTS)
    sync(study)
    sync(study)
    sync(study / "run")
    assert views(stand_in) == ["view/results"]
    (study / "report.html").write_text("<p>first</p>")
    sync(study)
    sync(study)
    assert views(stand_in) == ["view/results", "view/report", "view/results"]
    fields = stand_in.started[-1]
    assert (fields["job_type"], fields["name"], fields["group"]) == ("report", "study", "study")
    assert len({options["id"] for options in stand_in.started}) == 2


def test_the_report_of_a_sweep_is_handed_to_the_mirror_of_its_runs(
    study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed: list[Path] = []
    mirrors = Mirrors()
    mirrors.show_report(study)
    mirrors.mirror = type("Mirror", (), {"follow": lambda _, folder: followed.append(folder)})()
    mirrors.show_report(study)
    assert followed == [study]


def test_a_chart_for_each_measure_and_part_has_a_line_for_each_block() -> None:
    keys = ["stream_rms/0", "stream_rms/1", "stream_rms/embedding", "gradient_norm/mlp.up/0",
            "gradient_norm/mlp.down/0", "gradient_norm/mlp.down/1", "unheard_of/0"]  # fmt: skip
    rows = [
        {"step": i, "tokens": 8 * i, "train/loss": 1.0, **{f"probe/{key}": i for key in keys}}
        for i in range(1, 4)
    ]
    rows[1]["probe/stream_rms/1"] = None  # type: ignore[assignment]
    found = charts.of_rows(rows)
    assert {chart: [place.block for place in lines] for chart, lines in found.items()} == {
        ("stream_rms", ""): [0, 1, None], ("gradient_norm", "mlp.down"): [0, 1],
        ("gradient_norm", "mlp.up"): [0], ("unheard_of", ""): [0],
    }  # fmt: skip
    tokens, values = found["stream_rms", ""][Place("stream_rms", "", 1)]
    assert tokens == [8, 16, 24]
    assert values == pytest.approx([1, nan, 3], nan_ok=True)
    text = charts.drawn(rows)
    for title in ("stream, rms", "gradient, norm mlp.down", "gradient, norm mlp.up", "unheard_of"):
        assert text.count(f"<!-- {title} -->") == 1
    assert charts.drawn([{"step": 1, "tokens": 1}]) == ""


def test_a_report_counts_each_run_that_counts_once_and_a_run_is_no_study(
    study: Path, stand_in: StandIn, metrics: files.MetricsFile
) -> None:
    write(metrics, range(1, 3))
    rows = ["a,result,finished,1e5", "a,tune,finished,1e5", "b,result,diverged,22"]
    rows += ["c,unplanned,finished,3"]
    (study / "results.csv").write_text("\n".join(["run,stage,status,identity", *rows]) + "\n")
    one = ReportMirror(study, "offline")
    assert one._ending() == ("finished", {"runs": 2, "finished": 1, "diverged": 1})
    table = report._table(report._rows(study / "results.csv"))
    assert table.get_column("identity") == ["1e5", "1e5", "22", "3"]
    (study / "run" / "results.csv").write_text("run,stage,status\n")
    sync(study / "run")
    assert len({options["id"] for options in stand_in.started}) == 1
