"""Live and late views show the same. A stand-in for W&B keeps what is logged."""

import os

import pytest
from run_folders import config_of, make_run
from wandb_stand_in import Live, end, metrics, run, stand_in, study, write

from transformer_norms import cli
from transformer_norms.tracking import view
from transformer_norms.tracking.__main__ import main, sync


def test_live_and_late_views_show_the_same(run, stand_in, metrics):
    live = Live(run)
    for start in range(1, 21, 5):
        write(metrics, range(start, start + 5))
        assert not live.update()
    end(run)
    assert live.update()
    shown = stand_in.rows()
    assert [*shown] == [*range(1, 22)]  # the pictures are in a row after all others
    assert shown[21] == {"view/curve": "Html"}
    assert sync([run.parent, run], "offline") == 0
    assert len(stand_in.started) == 2
    assert stand_in.rows() == shown


@pytest.mark.goal("S6")
def test_rows_that_are_rewound_while_a_view_is_live_are_shown_as_the_file_ends(
    run, stand_in, metrics
):
    live = Live(run)
    write(metrics, range(1, 21))
    assert not live.update()
    metrics.truncate_after(10)
    assert not live.update()
    for step in range(11, 31):  # longer lines, so that the old place is no longer between two
        metrics.append({"step": step, "tokens": step, "seconds": 1 / step})
    end(run)
    assert live.update()
    rows = stand_in.rows()
    assert [*rows] == [*range(1, 32)]
    assert "seconds" in rows[11]


def test_a_torn_line_waits_rows_of_one_step_are_one_and_null_is_left_out(run, stand_in, metrics):
    live = Live(run)
    with metrics.path.open("ab", buffering=0) as file:
        file.write(b'{"step": 1, "train/loss": null}\n{"step": 2, "tok')
        live.update()
        file.write(b'ens": 3}\n{"step": 2, "tokens": 3, "val/loss": 2.0}\n')
        live.update(last=True)
    assert stand_in.rows() == {1: {}, 2: {"tokens": 3, "val/loss": 2.0}}


def test_a_process_that_mirrors_keeps_others_away(run, stand_in, metrics, capsys):
    write(metrics, range(1, 11))
    live = Live(run)
    live.update()
    assert sync([run], "offline") == 75
    assert "another process" in capsys.readouterr().err
    live.update(last=True)
    assert [*stand_in.rows()] == [*range(1, 11)]


def test_a_live_view_waits_for_the_curve_of_a_result(run, stand_in, metrics):
    write(metrics, range(1, 4))
    end(run)
    (run / "curve.svg").rename(run / "later.svg")
    live = Live(run)
    assert not live.update()
    (run / "later.svg").rename(run / "curve.svg")
    assert live.update()
    assert stand_in.rows()[4] == {"view/curve": "Html"}


@pytest.mark.goal("S6")
def test_without_a_network_one_line_that_tells_no_secret_says_so_and_a_later_sync_brings_all(
    run, stand_in, metrics,
    monkeypatch, capsys,
):  # fmt: skip
    monkeypatch.setenv("WANDB_API_KEY", "no network")
    write(metrics, range(1, 11))
    make_run(run.parent, config_of(seed=1), 2.0)
    assert sync([run.parent], "online") == 1
    assert len(stand_in.started) == 1  # the second does not wait again
    assert stand_in.started[0]["settings"].init_timeout == 20
    first, second = capsys.readouterr().err.splitlines()
    assert "no W&B" in first
    assert "no network" not in first + second
    monkeypatch.setattr(view, "_failures", [])  # another process
    stand_in.reachable = True
    assert sync([run.parent], "online") == 0
    assert [options["mode"] for options in stand_in.started] == ["online"] * 3


def test_a_run_that_cannot_start_does_not_end_the_runs_that_are_open(run, stand_in, metrics):
    stand_in.reachable = True
    write(metrics, range(1, 3))
    first = Live(run, "online")
    first.update()
    stand_in.reachable = False
    with pytest.raises(ConnectionError, match="no W&B"):
        Live(make_run(run.parent, config_of(seed=1), 2.0), "online").update()
    assert first.update(last=True)
    assert [*stand_in.rows()] == [1, 2]


def test_what_was_mirrored_offline_is_replaced_online(run, stand_in, metrics, capsys):
    write(metrics, range(1, 11))
    assert sync([run], "offline") == 0
    assert capsys.readouterr().err.endswith(
        "mirrored up to step 10; its upload waits for `sync` online\n"
    )
    stand_in.reachable = True
    write(metrics, range(11, 21))
    assert sync([run], "online") == 0
    assert capsys.readouterr().err.endswith("mirrored up to step 20\n")
    assert [*stand_in.rows()] == [*range(1, 21)]


def test_a_broken_run_is_told_and_the_others_are_mirrored(run, stand_in, metrics, capsys):
    write(metrics, range(1, 11))
    broken = make_run(run.parent, config_of(seed=1), 2.0, rows=0)
    (broken / "metrics.jsonl").write_text('{"no step": 1}\n')
    unreadable = make_run(run.parent, config_of(seed=2), 2.0)
    (unreadable / "config.yaml").write_text("seed: [")
    assert main(["sync", str(run.parent), "--mode", "offline"]) == 2
    said = capsys.readouterr().err
    assert f"{broken.name}/metrics.jsonl: is not a row of measurements" in said
    assert f"{unreadable.name}/config.yaml: " in said
    assert "Error" not in said
    assert len(said.splitlines()) == 3
    assert f"{run.name}: mirrored up to step 10" in said
    assert not stand_in.in_use


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("diverged", 0), ("failed", 1)])
def test_how_a_run_ended_is_how_it_ends_in_wandb(run, stand_in, metrics, status, code):
    write(metrics, range(1, 3))
    end(run, status)
    assert Live(run).update()
    assert stand_in.exit_codes == [code]


def test_what_is_asked_of_wandb_is_shown_for_runs_and_report(study, stand_in, monkeypatch):
    config = config_of()
    config["tracking"] = {"type": "wandb", "project": "norms", "tags": ["x", "y"]}
    make_run(study, config, 2.0)
    (study / "report.html").write_text("<p>a report</p>")
    for asked in "PROJECT=other ENTITY=us RUN_GROUP=spring NAME=best NOTES=a".split():
        monkeypatch.setenv(*f"WANDB_{asked}".split("="))
    monkeypatch.setenv("WANDB_RESUME", "must")  # for a run that has the id already
    assert sync([study], "offline") == 0
    of_run, of_report = stand_in.started
    for fields in stand_in.started:
        shown = [fields[key] for key in ("project", "entity", "group")]
        assert shown == ["norms", "us", "spring"]
    assert (of_run["name"], of_run["notes"], of_run["tags"][-2:]) == ("best", "a", ["x", "y"])
    assert (of_report["name"], of_report["job_type"]) == ("study", "report")
    assert of_run["id"] != of_report["id"]
    assert "WANDB_RESUME" not in os.environ


def test_an_agent_gets_the_run_that_it_asked_for_and_starts_no_sweep(
    run, stand_in, metrics, monkeypatch, capsys
):
    monkeypatch.setenv("WANDB_RUN_ID", "a1")  # alone it decides nothing
    sync([run], "offline")
    monkeypatch.setenv("WANDB_SWEEP_ID", "s7")
    sync([run], "offline")
    assert [fields["id"] == "a1" for fields in stand_in.started] == [False, True]
    assert cli.main(["-m", "seed=0,1"]) == 2
    assert "agent" in capsys.readouterr().err
