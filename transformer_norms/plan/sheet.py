"""A plan in words and tables, for a terminal."""

from collections.abc import Iterable

from transformer_norms.plan.plans import GIB, Memory, RunPlan, SweepPlan
from transformer_norms.plan.rehearsal import PARTS
from transformer_norms.text_tables import text_table, wrap_text

FREE = 0.1  # of a device's memory, which an allocator cannot use


def run_lines(plan: RunPlan, capacity: float | None) -> list[str]:
    """Returns the lines of a run's plan. `capacity` are the bytes of the accelerator, if typed."""
    notes = _notes(_memory_notes(plan, capacity))
    return [*_size_lines(plan), "", *_memory_lines(plan.memory), "", *notes]


def _size_lines(plan: RunPlan) -> list[str]:
    numbers, layout = plan.parameters, plan.layout
    whole, trainer = sum(numbers.values()), plan.config.trainer
    inner = whole - numbers["embeddings"] - numbers["head"]
    again = f", and {plan.again:.4g} once more" if plan.again else ""
    rows = [
        ("parameters", f"{whole:,}"),
        ("  without embeddings and head", f"{inner:,}"),
        ("  of norms and coefficients", f"{numbers['norms']:,}"),
        ("FLOPs of a token", f"{plan.flops:.4g} forward and backward{again}"),
        (
            "a step",
            f"{plan.tokens_per_step:,} tokens: {layout.micro_batches} x {layout.sequences} "
            f"sequences of {plan.config.model.context}",
        ),
        (
            "the run",
            f"{trainer.steps:,} steps, {plan.tokens:.4g} tokens, "
            f"{plan.flops * plan.tokens:.4g} FLOPs",
        ),
    ]
    width = max(len(name) for name, _ in rows)
    return [f"{name:{width}}  {value}" for name, value in rows]


def _memory_lines(memory: Memory) -> list[str]:
    counted = max(parts.total() for parts in memory.phases.values())
    name, unit = ("GiB", GIB) if counted >= GIB else ("MiB", GIB >> 10)
    heading = [f"{name} of a device, at its fullest", *memory.phases]
    rows = [
        [part, *(_sized(parts[part], unit) for parts in memory.phases.values())]
        for part in PARTS
        if any(parts[part] for parts in memory.phases.values())
    ]
    rows.append(["rest (assumed)", *(_sized(memory.rest, unit) for _ in memory.phases)])
    totals = [memory.rest + parts.total() for parts in memory.phases.values()]
    rows.append(["in all", *(_sized(total, unit) for total in totals)])
    return text_table([heading, *rows]).splitlines()


def _memory_notes(plan: RunPlan, capacity: float | None) -> list[str]:
    trainer, notes = plan.config.trainer, []
    if capacity:
        usable = (1 - FREE) * capacity
        fits = "fits into" if plan.memory.peak <= usable else "does NOT fit into"
        notes.append(
            f"{_sized(plan.memory.peak)} GiB {fits} {_sized(usable)}: "
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
        f"a run of {plan.fullest}, which takes the most memory:",
        "",
        *run_lines(plan.runs[plan.fullest], capacity),
    ]


def _sized(size: float, unit: int = GIB) -> str:
    return f"{size / unit:,.2f}"


def _notes(notes: Iterable[str]) -> list[str]:
    return [line for note in notes for line in wrap_text(note, "- ", "  ")]
