"""The workspace has a panel for all that the report has, and saves or says why it cannot."""

import re
import subprocess
from typing import Any

import pytest

from transformer_norms.tracking import __main__ as tracking
from transformer_norms.tracking import workspace as wandb_workspace
from transformer_norms.training.measures import MEASURES, Place, key_of


def spec(view: Any) -> dict[str, Any]:
    return view._to_model().model_dump(by_alias=True, exclude_none=True)["spec"]["section"]


def configs(section: dict[str, Any]) -> list[dict[str, Any]]:
    found = section["panelBankConfig"]["sections"]
    return [panel["config"] for one in found for panel in one["panels"]]


def test_every_measure_has_a_panel_and_every_curve_is_a_mean_of_seeds() -> None:
    section = spec(wandb_workspace.results("entity", "project"))
    panels = configs(section)
    patterns = [panel["metricRegex"] for panel in panels if "metricRegex" in panel]
    assert patterns == [wandb_workspace.pattern(measure) for measure in MEASURES]
    (losses,) = [panel for panel in panels if panel.get("metrics") == ["val/loss"]]
    assert (losses["xAxis"], losses["groupBy"]) == ("tokens", "variant.value")
    assert (losses["groupAgg"], losses["groupArea"]) == ("mean", "minmax")
    by = {panel.get("groupBy") for panel in panels if panel.get("metrics") == ["val_loss"]}
    assert by == {"choices.value.norm", "choices.value.placement", "variant.value"}
    (runs,) = section["runSets"]
    assert runs["grouping"] == [{"section": "config", "name": "variant.value"}]
    (only,) = runs["filters"]["filters"]
    assert (only["key"]["name"], only["value"]) == ("jobType", ["result", "train"])


def test_rates_are_shown_of_tuning_runs_too_on_an_axis_of_powers() -> None:
    section = spec(wandb_workspace.rates("entity", "project"))
    panel = configs(section)[0]
    assert (panel["xAxis"], panel["xAxisLogScale"]) == ("config:optimizer.value.lr", True)
    (hidden,) = section["runSets"][0]["filters"]["filters"]
    assert (hidden["op"], hidden["value"]) == ("!=", "report")


def test_a_pattern_finds_the_keys_of_its_measure_and_no_others() -> None:
    measures = [*MEASURES, "stream", "stream_rms_too", "stream_rmsx"]
    ends = [("", 0), ("", 11), ("mlp.up", 3), ("attention.query", 12), ("embedding", None)]
    places = [Place(measure, *end) for measure in measures for end in ends]
    for measure in MEASURES:
        found = re.compile(wandb_workspace.pattern(measure))
        for place in places:
            assert bool(found.search(key_of(place))) == (place.measure == measure), place
        for key in (f"x/probe/{measure}/0", f"probe/{measure}", f"probe/{measure}/a/b/0", "lr"):
            assert not found.search(key)


@pytest.mark.parametrize("name", ["a/b/c", "", "/project", "entity/", "a?b"])
def test_a_name_that_is_no_projects_is_one_line_and_2(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tracking.main(["workspace", name]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("missing", "said"),
    [("extra", "pip install"), ("login", "wandb login"), ("network", "did not answer"),
     ("right", "permission denied to ***")],
)  # fmt: skip
def test_what_keeps_a_workspace_from_being_saved_is_one_line_and_1(
    missing: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(command: list[str], **options: Any) -> Any:
        assert options["stdin"] == subprocess.DEVNULL
        if missing == "network":
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return subprocess.CompletedProcess(
            command, 1, "", "long\npermission denied to 5ec2e75ec2e75ec2e75ec2e7\n"
        )

    monkeypatch.setattr(tracking.subprocess, "run", run)
    monkeypatch.setattr(tracking, "find_spec", lambda name: None if missing == "extra" else name)
    monkeypatch.setenv("WANDB_API_KEY", "5ec2e75ec2e75ec2e75ec2e7")
    monkeypatch.setenv("WANDB_MODE", "offline" if missing == "login" else "online")
    assert tracking.main(["workspace", "entity/project"]) == 1
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
