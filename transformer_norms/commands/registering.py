"""`sweep=NAME --register` writes the question of a sweep down before its runs begin."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import get_args

import yaml

from transformer_norms.comparison.registration import (
    difference_lines,
    path_of_registration,
    read_registration,
    sealed,
)
from transformer_norms.comparison.sweep_record import distinct
from transformer_norms.comparison.verdict import Verdict
from transformer_norms.errors import ConfigError
from transformer_norms.plan.plans import plan_sweep_of
from transformer_norms.run.machine import commit
from transformer_norms.storage.files import make_folder, write_bytes
from transformer_norms.storage.reading import is_there, read_text
from transformer_norms.sweep.drive import plan_sweep
from transformer_norms.sweep.question import read_request


def register(arguments: Sequence[str]) -> str:
    """Writes registered/STUDY.yaml of the sweep of a command line, and returns what to say. Raises
    ConfigError where a job cannot be run, or where the file is there and differs."""
    if not (request := read_request(arguments)).named:
        raise ConfigError("--register: is about the question of a file; type sweep=NAME")
    planner, jobs = plan_sweep(arguments)  # refuses a job that cannot be run
    if planner.request.part != "none":
        raise ConfigError("--register: is about all results; leave launcher.part out")
    firsts = distinct([job.run for job in jobs], lambda run: run.variant)
    terms = [*request.question.terms, *(f"run {run} {run.identity}" for run in firsts)]
    path = path_of_registration(request.study)
    if is_there(path):
        before, intact = read_registration(read_text(path), str(path))
        if before.sweep == request.name and {*before.terms} == {*terms} and intact:
            return f"{path}: registered this question on {before.date}, and stays as it is"
        changed = "" if intact else ", and its hash does not fit"
        raise ConfigError(
            f"{path}: is there, for sweep={before.sweep}{changed}. "
            f"{' '.join(difference_lines(before.terms, terms))} study=NAME registers under another "
            "name; to replace the file, delete it"
        )
    plan = plan_sweep_of(arguments, "auto", None)
    total = plan.stages.get("all", plan.stages["results"])
    content = {
        "sweep": request.name,
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        **commit(),
        "terms": terms,
        "words": [*get_args(Verdict)],
        "budget": total,
    }
    make_folder(path.parent)
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    write_bytes(path, sealed(text).encode())
    budget = f"{total['runs']:,} runs, {total['steps']:,} steps in all"
    return f"{path}: commit it before the first run; {budget}"
