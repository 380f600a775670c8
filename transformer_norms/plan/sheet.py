"""A plan in words and tables, for a terminal."""

from collections.abc import Iterable, Mapping
from typing import Any

from transformer_norms.plan.plans import GIB, RunPlan, SweepPlan
from transformer_norms.plan.rehearsal import PARTS
from transformer_norms.text_tables import text_table, wrap_text

FREE = 0.1  # of a device's memory, which an allocator cannot use


def run_lines(plan: RunPlan, capacity: float | None) -> list[str]:
    """Returns the lines of a run's plan. `capacity` are the bytes of the accelerator, if typed."""
    notes = _notes(_memory_notes(plan, capacity))
    return [*_size_lines(plan), "", *_memory_lines(plan.numbers), "", *notes]


def _size_lines(plan: RunPlan) -> list[str]:
    numbers, parameters = plan.numbers, plan.numbers["parameters"]
    inner = parameters["all"] - parameters["embeddings"] - parameters["head"]
    extra = numbers["flops_per_token_again"]
    again = f", and {extra:.4g} once more" if extra else ""
    rows = [
        ("parameters", f"{parameters['all']:,}"),
        ("  without embeddings and head", f"{inner:,}"),
        ("  of norms and coefficients", f"{parameters['norms']:,}"),
        ("FLOPs of a token", f"{numbers['flops_per_token']:.4g} forward and backward{again}"),
        (
            "a step",
            f"{numbers['tokens_per_step']:,} tokens: {numbers['micro_batches']} x "
            f"{numbers['sequences']} sequences of {plan.config.model.context}",
        ),
        (
            "the run",
            f"{plan.config.trainer.steps:,} steps, {numbers['tokens']:.4g} tokens, "
            f"{numbers['flops']:.4g} FLOPs",
        ),
    ]
    width = max(len(name) for name, _ in rows)
    return [f"{name:{width}}  {value}" for name, value in rows]


def _memory_lines(numbers: Mapping[str, Any]) -> list[str]:
    rest, phases = numbers["rest"], numbers["memory"]
    name, unit = ("GiB", GIB) if numbers["peak_memory"] - rest >= GIB else ("MiB", GIB >> 10)
    rows = [[part, *(phase.get(part, 0) for phase in phases.values())] for part in PARTS]
    rows = [row for row in rows if any(row[1:])]
    rows.append(["rest (assumed)", *(rest for _ in phases)])
    rows.append(["in all", *(rest + sum(phase.values()) for phase in phases.values())])
    heading = [f"{name} of a device, at its fullest", *phases]
    shown = [[part, *(_sized(size, unit) for size in sizes)] for part, *sizes in rows]
    return text_table([heading, *shown]).splitlines()


def _memory_notes(plan: RunPlan, capacity: float | None) -> list[str]:
    trainer, notes, peak = plan.config.trainer, [], plan.numbers["peak_memory"]
    if capacity:
        usable = (1 - FREE) * capacity
        fits = "fits into" if peak <= usable else "does NOT fit into"
        notes.append(
            f"{_sized(peak)} GiB {fits} {_sized(usable)}: "
            f"{1 - FREE:.0%} of the {capacity / 1e9:g} GB of the data sheet, since an allocator "
            "cannot use all"
        )
    if trainer.compile != "none" and trainer.device == "cuda":
        notes.append("blocks are planned as if they were not compiled; compiled ones keep less")
    if trainer.device == "cpu":
        notes.append("the C library of a CPU's process may hold more than the program asks for")
        if trainer.replicas == "auto":
            notes.append("trainer.replicas=auto is planned as 1; type a number to plan more")
    if plan.config.parallel.type != "none":
        notes.append(f"one device is planned; parallel={plan.config.parallel.type} is left out")
    return notes


def sweep_lines(plan: SweepPlan, capacity: float | None) -> list[str]:
    """Returns the lines of a sweep's plan: its stages, and the run that takes the most memory."""
    question = plan.request.question
    fullest = max(plan.runs, key=lambda name: plan.runs[name].numbers["peak_memory"])
    title = f"{plan.request.name}: {question.question}".rstrip(": ")
    notes = [*plan.request.remarks, *filter(None, [question.tune.more_text])]
    if question.until_decided:
        notes.append(f"the results are at most these: {question.until_decided}")
    rows = [
        [stage, f"{total['runs']:,}", f"{total['tokens']:.4g}", f"{total['flops']:.4g}"]
        for stage, total in plan.stages.items()
    ]
    return [
        *wrap_text(title),
        *text_table([["", "runs", "tokens", "FLOPs"], *rows]).splitlines(),
        *_notes(notes),
        "",
        f"a run of {fullest}, which takes the most memory:",
        "",
        *run_lines(plan.runs[fullest], capacity),
    ]


def _sized(size: float, unit: int = GIB) -> str:
    return f"{size / unit:,.2f}"


def _notes(notes: Iterable[str]) -> list[str]:
    return [line for note in notes for line in wrap_text(note, "- ", "  ")]
