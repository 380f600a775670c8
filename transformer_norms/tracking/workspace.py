"""Two saved views of a W&B project, laid out as the report is: results, and what tuning found.

Needs the extra `workspaces`. `python -m transformer_norms.tracking workspace` saves them.
"""

import re
import sys
from typing import Any

import wandb
import wandb_workspaces.reports.v2 as panels
import wandb_workspaces.workspaces as workspaces
from wandb_workspaces import expr

from transformer_norms.training.measures import MEASURES, PREFIX

_FINAL = ("choices.placement", "choices.norm", "variant")


def results(entity: str, project: str) -> workspaces.Workspace:
    """Shows losses, final losses, stability and diagnostics of all but tuning runs, by variant."""
    return _view(
        entity,
        project,
        "norms: results",
        [
            _section("losses", [_curve("val/loss"), _curve("train/loss"), _curve("val/bpb")]),
            _section("final losses", [_bars("val_loss", by) for by in _FINAL]
                     + [_bars("test_loss", "variant")]),
            _section("stability", [
                _curve("grad_norm", log_y=True), _bars("spikes", "variant"),
                _bars("final/diverged", "variant", "diverged, share of the seeds"),
            ]),
            _section("diagnostics", [_diagnosis(measure) for measure in MEASURES]),
        ],
        workspaces.RunsetSettings(
            filters=expr.And(expr.Metric("JobType").isin(["result", "train"])),
            groupby=[expr.Config("variant")],
            order=[expr.Ordering(expr.Summary("val_loss"), ascending=True)],
            pinned_columns=["summary:val_loss", "summary:test_loss", "summary:final/diverged"],
        ),
    )  # fmt: skip


def rates(entity: str, project: str) -> workspaces.Workspace:
    """Shows the loss at each rate, of tuning runs as well; a workspace has one filter for all."""
    losses = [
        panels.ScatterPlot(
            title=f"{loss} by rate", x=panels.Config("optimizer.lr"),
            y=panels.SummaryMetric(loss), log_x=True,
        )
        for loss in ("val_loss", "best_val_loss")
    ]  # fmt: skip
    columns = ["config:variant.value", "config:optimizer.value.lr", "summary:val_loss"]
    settings = workspaces.RunsetSettings(
        filters=expr.And(expr.Metric("JobType") != "report"),
        order=[expr.Ordering(expr.Summary("val_loss"), ascending=True)],
        pinned_columns=columns,
    )
    return _view(entity, project, "norms: rates", [_section("rates", losses)], settings)


def pattern(measure: str) -> str:
    """Matches the keys of one measure, with and without a part."""
    return rf"^{PREFIX}/{re.escape(measure)}/([^/]+/[0-9]{{1,5}}|[^/]+)$"


def _view(entity: str, project: str, name: str, sections: list[Any], runs: Any) -> Any:
    settings = workspaces.WorkspaceSettings(x_axis="tokens", max_runs=50)
    return workspaces.Workspace(
        entity=entity, project=project, name=name, sections=sections,
        settings=settings, runset_settings=runs,
    )  # fmt: skip


def _section(name: str, members: list[Any]) -> Any:
    return workspaces.Section(name=name, panels=members, is_open=True)


def _curve(metric: str, log_y: bool | None = None) -> Any:
    """Draws a metric over tokens: the mean of a variant's seeds, with the least and the largest."""
    return panels.LinePlot(
        title=metric, x="tokens", y=[metric], log_y=log_y,
        groupby=panels.Config("variant"), groupby_aggfunc="mean", groupby_rangefunc="minmax",
    )  # fmt: skip


def _bars(value: str, by: str, title: str | None = None) -> Any:
    return panels.BarPlot(
        title=f"{title or value} by {by.removeprefix('choices.')}", metrics=[value],
        groupby=panels.Config(by), groupby_aggfunc="mean", groupby_rangefunc="minmax",
    )  # fmt: skip


def _diagnosis(measure: str) -> Any:
    about = MEASURES[measure]
    return panels.LinePlot(
        title=about.title, x="tokens", metric_regex=pattern(measure), log_y=about.log or None
    )


def main(project: str) -> None:
    """Prints the URLs of the saved views."""
    entity, _, name = project.rpartition("/")
    entity = entity or str(wandb.Api(timeout=20).default_entity)
    for view in (results(entity, name), rates(entity, name)):
        print(view.save().url)


if __name__ == "__main__":
    main(sys.argv[1])
