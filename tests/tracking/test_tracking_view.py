"""Live and late views show the same. A stand-in for W&B keeps what is logged."""

import os

import pytest
from run_folders import config_of, make_run
from wandb_stand_in import end, metrics, run, stand_in, study, write

from transformer_norms import cli
from transformer_norms.run.metrics import MetricsFile
from transformer_norms.tracking.__main__ import main, sync
from transformer_norms.tracking.folders import view_of
from transformer_norms.tracking.mirror import take_agent, wishes
from transformer_norms.tracking.view import View


def test_live_and_late_views_show_the_same(run, stand_in, metrics):
    live = view_of(run, "offline")
    for start in range(1, 21, 5):
        write(metrics, range(start, start + 5))
        assert not live.update()
    end(run)
    assert live.update()
    shown = stand_in.rows()
    assert [*shown] == [*range(1, 22)]  # the pictures stand in a row behind all others
    assert shown[21] == {"view/curve": "Html"}

    for file in (run.parent / "wandb").glob("*.json"):
        file.unlink()
    assert view_of(run, "offline").update(last=True)
    assert stand_in.rows() == shown


@pytest.mark.goal("S6")
def test_rows_that_are_rewound_while_a_view_is_live_are_shown_as_the_file_ends(
    run, stand_in, metrics
):
    live = view_of(run, "offline")
    write(metrics, range(1, 21))
    assert not live.update()
    metrics.truncate_after(10)
    assert not live.update()
    for step in range(11, 31):  # longer lines, so that the old place is no longer between two
        metrics.append({"step": step, "tokens": step, "seconds": 1 / step})
    end(run)
    assert live.update()
    assert not live.problem
    rows = stand_in.rows()
    assert [*rows] == [*range(1, 32)]
    assert "seconds" in rows[11]


def test_a_complete_view_is_written_again_only_when_its_folder_has_changed(run, stand_in, metrics):
    write(metrics, range(1, 11))
    end(run, "preempted")
    for _ in range(2):
        assert sync([run.parent, run], "offline") == 0
    assert len(stand_in.started) == 1
    write(metrics, range(11, 16))
    end(run)
    for _ in range(2):
        assert sync([run], "offline") == 0
    assert len(stand_in.started) == 2
    assert [*stand_in.rows()] == [*range(1, 17)]


def test_a_torn_line_waits_rows_of_one_step_are_one_and_null_is_left_out(run, stand_in, metrics):
    view = view_of(run, "offline")
    with metrics.path.open("ab", buffering=0) as file:
        file.write(b'{"step": 1, "train/loss": null}\n{"step": 2, "tok')
        view.update()
        file.write(b'ens": 3}\n{"step": 2, "tokens": 3, "val/loss": 2.0}\n')
        view.update(last=True)
    assert stand_in.rows() == {1: {}, 2: {"tokens": 3, "val/loss": 2.0}}


def test_a_run_that_has_no_rows_yet_waits_for_them(run, stand_in, metrics):
    metrics.path.unlink()
    view = view_of(run, "offline")
    assert not view.update()
    write(MetricsFile(metrics.path), range(1, 4))
    assert view.update(last=True)
    assert [*stand_in.rows()] == [1, 2, 3]


def test_a_process_that_mirrors_keeps_others_away(run, stand_in, metrics, capsys):
    write(metrics, range(1, 11))
    live = view_of(run, "offline")
    live.update()
    assert sync([run], "offline") == 0
    assert "another process" in capsys.readouterr().err
    live.update(last=True)
    assert [*stand_in.rows()] == [*range(1, 11)]


def test_a_live_view_waits_for_the_curve_of_a_result(run, stand_in, metrics):
    write(metrics, range(1, 4))
    end(run)
    (run / "curve.svg").rename(run / "later.svg")
    live = view_of(run, "offline")
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
    assert stand_in.modes == ["online"]  # the second does not wait again
    assert stand_in.started[0]["settings"].init_timeout == 20
    said = capsys.readouterr().err
    log = (run.parent / "wandb" / "mirror.log").read_text()
    assert said.count("\n") == log.count("\n") == 2
    assert "no W&B" in log.splitlines()[0]
    assert "no network" not in log + said
    monkeypatch.setattr(View, "unreached", False)  # another process
    stand_in.reachable = True
    stand_in.teardown()
    assert sync([run.parent], "online") == 0
    assert stand_in.modes == ["online"] * 3


def test_a_run_that_cannot_start_does_not_end_the_runs_that_are_open(run, stand_in, metrics):
    stand_in.reachable = True
    write(metrics, range(1, 3))
    first = view_of(run, "online")
    first.update()
    stand_in.reachable = False
    second = view_of(make_run(run.parent, config_of(seed=1), 2.0), "online")
    assert second.update()
    assert "no W&B" in second.problem
    assert first.update(last=True)
    assert not first.problem
    assert [*stand_in.rows()] == [1, 2]


def test_what_was_mirrored_offline_is_written_anew_online_and_then_stays(
    run, stand_in, metrics, capsys
):
    write(metrics, range(1, 11))
    assert sync([run], "offline") == 0
    assert "mirrored up to step 10; its upload waits for `sync` online" in capsys.readouterr().err
    stand_in.reachable = True
    for mode in ("online", "online", "offline"):
        assert sync([run], mode) == 0
        assert capsys.readouterr().err.endswith("mirrored up to step 10\n")
    assert stand_in.modes == ["offline", "online"]
    (rows,) = stand_in.server.values()
    assert rows == stand_in.rows()
    write(metrics, range(11, 21))
    assert sync([run], "online") == 0
    (rows,) = stand_in.server.values()
    assert [*rows] == [*range(1, 21)]


def test_what_wandbs_own_sync_has_uploaded_is_not_written_anew(run, stand_in, metrics):
    write(metrics, range(1, 4))
    end(run)
    assert sync([run], "offline") == 0
    (part,) = run.parent.glob("wandb/offline-run-*")
    (part / "run-x.wandb.synced").touch()  # as `wandb sync` leaves it
    stand_in.reachable = True
    assert sync([run], "online") == 0
    assert stand_in.modes == ["offline"]


def test_a_broken_run_is_told_and_the_others_are_mirrored(run, stand_in, metrics, capsys):
    write(metrics, range(1, 11))
    broken = make_run(run.parent, config_of(seed=1), 2.0, rows=0)
    (broken / "metrics.jsonl").write_text('{"no step": 1}\n')
    unreadable = make_run(run.parent, config_of(seed=2), 2.0)
    (unreadable / "config.yaml").write_text("seed: [")
    assert main(["sync", str(run.parent), "--mode", "offline"]) == 2
    said = capsys.readouterr().err
    assert f"{broken.name}/metrics.jsonl: is no row of measurements" in said
    assert f"{unreadable.name}/config.yaml: " in said
    assert "Error" not in said
    assert len(said.splitlines()) == 3
    assert f"{run.name}: mirrored up to step 10" in said
    assert not stand_in.in_use


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("diverged", 0), ("failed", 1)])
def test_how_a_run_ended_is_how_it_ends_in_wandb(run, stand_in, metrics, status, code):
    write(metrics, range(1, 3))
    end(run, status)
    view_of(run, "offline").update()
    assert stand_in.exit_codes == [code]


def test_probes_are_hidden_from_automatic_panels_each_by_its_own_name(run, stand_in, metrics):
    metrics.append({"step": 1, "tokens": 8, "probe/gradient_norm/mlp.up/0": 2.0, "lr": 0.1})
    view_of(run, "offline").update(last=True)
    hidden = {"step_metric": "tokens", "hidden": True}
    everything = {"step_metric": "tokens"}
    assert stand_in.defined == {"*": everything, "probe/gradient_norm/mlp.up/0": hidden}


def test_a_report_is_shown_once_and_again_when_it_has_changed(run, study, stand_in, metrics):
    write(metrics, range(1, 3))
    assert sync([study], "offline") == 0
    (study / "report.html").write_text("<p>first</p>")
    for folder in (study, study, run):
        assert sync([folder], "offline") == 0
    (study / "report.html").write_text("<p>second</p>")
    assert sync([study], "offline") == 0
    of_run, *of_report = stand_in.started
    assert [fields["job_type"] for fields in of_report] == ["report", "report"]
    assert {(fields["name"], fields["group"]) for fields in of_report} == {("study", "study")}
    assert len({of_run["id"], *(fields["id"] for fields in of_report)}) == 2


def test_an_agent_of_a_sweep_gets_the_run_that_it_asked_for_and_a_later_sync_keeps_it(
    run, stand_in, metrics, tmp_path
):
    typed = tmp_path / "config-a1.yaml"
    typed.write_text("wandb_version: 1\noptimizer.lr: {desc: null, value: 0.003}\n")
    environment = {
        "WANDB_SWEEP_ID": "s7", "WANDB_RUN_ID": "a1", "WANDB_SWEEP_PARAM_PATH": str(typed),
        "WANDB_PROJECT": "norms", "WANDB_ENTITY": "us",
    }  # fmt: skip
    assert not take_agent({"WANDB_RUN_ID": "a1"})
    kept = take_agent(environment) | wishes(environment)
    assert set(environment) == {"WANDB_PROJECT", "WANDB_ENTITY"}
    write(metrics, range(1, 4))
    live = view_of(run, "offline", kept)
    live.update()
    live._release()  # the mirror is killed, before the run has ended
    end(run)
    assert sync([run], "offline") == 0
    for fields in stand_in.started:
        assert (fields["id"], fields["project"], fields["entity"]) == ("a1", "norms", "us")
        assert (fields["settings"].sweep_id, fields["config"]["optimizer.lr"]) == ("s7", 0.003)
    assert len(stand_in.started) == 2
    # The same run, asked for by another agent, is shown to that one as well.
    other = {"agent": kept["agent"] | {"run_id": "a2"}}
    assert view_of(run, "offline", other).update(last=True)
    assert stand_in.started[-1]["id"] == "a2"


def test_what_wandbs_variables_ask_for_is_shown_for_runs_and_report_and_kept_for_a_later_sync(
    run, study, stand_in, metrics, monkeypatch
):
    asked = "PROJECT=norms ENTITY=us RUN_GROUP=spring NAME=best NOTES=a TAGS=x,y".split()
    kept = wishes(dict(f"WANDB_{text}".split("=") for text in asked))
    monkeypatch.setenv("WANDB_RESUME", "must")  # for a run that has the id already
    write(metrics, range(1, 4))
    (study / "report.html").write_text("<p>first</p>")
    view_of(run, "offline", kept).update(last=True)
    view_of(study, "offline", kept).update(last=True)
    write(metrics, range(4, 6))
    assert sync([run], "offline") == 0
    assert [one["job_type"] for one in stand_in.started] == ["train", "report", "train"]
    for fields in stand_in.started:
        shown = [fields[key] for key in ("project", "entity", "group")]
        assert shown == ["norms", "us", "spring"]
        if fields["job_type"] == "train":
            asked = fields["name"], fields["notes"], fields["tags"][-2:]
            assert asked == ("best", "a", ["x", "y"])
    assert "WANDB_RESUME" not in os.environ
    monkeypatch.setenv("WANDB_PROJECT", "other")  # what is asked for now comes first
    assert sync([run], "offline") == 0
    assert stand_in.started[-1]["project"] == "other"


def test_an_agent_starts_no_sweep_of_ours(monkeypatch, capsys):
    monkeypatch.setenv("WANDB_SWEEP_ID", "s7")
    monkeypatch.setenv("WANDB_RUN_ID", "a1")
    assert cli.main(["-m", "seed=0,1"]) == 2
    assert "agent" in capsys.readouterr().err
