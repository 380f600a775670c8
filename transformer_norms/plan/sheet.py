"""A plan in words and tables, for a terminal."""

from collections.abc import Iterable, Sequence

from transformer_norms.plan.memory import FREE, GIB
from transformer_norms.plan.of_run import RunPlan
from transformer_norms.plan.of_sweep import SweepPlan
from transformer_norms.plan.rehearsal import PARTS
from transformer_norms.plan.speed import DAY
from transformer_norms.text_tables import text_table, wrap_text

Row = Sequence[str]


def run_lines(plan: RunPlan, price: float | None) -> list[str]:
    """Returns the lines of a run's plan."""
    return [
        *_size_lines(plan),
        "",
        *_memory_lines(plan),
        *_time_lines(plan, price),
        "",
        *_notes([*_memory_notes(plan), *_time_notes(plan)]),
    ]


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
        ("devices", f"{layout.devices:,}, parallel={layout.parallel}"),
    ]
    return _pairs(rows)


def _memory_lines(plan: RunPlan) -> list[str]:
    memory = plan.memory
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


def _time_lines(plan: RunPlan, price: float | None) -> list[str]:
    speed, cluster = plan.speed, plan.cluster
    if speed is None or cluster is None or plan.seconds is None:
        return []
    devices = plan.layout.devices
    hours = devices * plan.seconds / 3600
    rows = [
        ("tokens per second", f"{plan.tokens_per_step / speed.step:,.0f}"),
        ("a step", f"{_seconds(speed.step)}, {_seconds(speed.exchange)} of exchange"),
        ("the run", f"{plan.seconds / DAY:.3g} days, {hours:,.4g} device-hours"),
    ]
    if price is not None:
        rows.append(("its cost", f"{hours * price:,.2f}"))
    return ["", *_pairs(rows)]


def _memory_notes(plan: RunPlan) -> list[str]:
    capacity, peak = plan.cluster and plan.cluster.accelerator.memory, plan.memory.peak
    notes = []
    if capacity:
        fits = "fits into" if plan.memory.fits(capacity) else "does NOT fit into"
        notes.append(
            f"{_sized(peak)} GiB {fits} {_sized((1 - FREE) * capacity)}: {1 - FREE:.0%} of the "
            f"{capacity / 1e9:g} GB of the data sheet, since an allocator cannot use all"
        )
    if plan.layout.parallel == "fsdp" and plan.layout.share > 1:
        notes.append(
            f"each device adds up the gradients of {plan.layout.share} micro-batches whole; with "
            f"trainer.accumulation={plan.layout.devices} they are shards"
        )
    if plan.config.trainer.compile != "none" and plan.config.trainer.device == "cuda":
        notes.append("blocks are planned as if they were not compiled; compiled ones keep less")
    if plan.config.trainer.device == "cpu":
        notes.append("the C library of a CPU's process may hold more than the program asks for")
        if plan.config.trainer.replicas == "auto":
            notes.append("trainer.replicas=auto is planned as 1; type a number to plan more")
    return notes


def _time_notes(plan: RunPlan) -> list[str]:
    cluster = plan.cluster
    if cluster is None:
        return ["without --accelerator no time is planned"]
    precision = plan.config.trainer.precision
    notes = [
        f"assumed: {cluster.utilisation:.0%} of {cluster.peak / 1e12:g} TFLOP/s ({precision}, data "
        "sheet) are made use of, evaluations and checkpoints aside"
    ]
    if plan.layout.devices > 1:
        way = "while it computes" if plan.layout.parallel == "fsdp" else "after it has computed"
        notes.append(
            f"assumed: a device exchanges {way}, at {cluster.accelerator.link / 1e9:g} GB/s, as if "
            "all were in one machine"
        )
    return notes


def sweep_lines(plan: SweepPlan, price: float | None) -> list[str]:
    """Returns the lines of a sweep's plan: its stages, and the run that takes the most memory."""
    fullest = plan.runs[plan.fullest]
    title = f"{plan.request.name}: {plan.request.question.question}".rstrip(": ")
    heading = ["", "runs", "tokens", "FLOPs"]
    if fullest.speed:
        heading += ["device-hours", "days"] + (["cost"] if price is not None else [])
    rows = []
    for stage in plan.stages:
        row = [stage.name, f"{stage.runs:,}", f"{stage.tokens:.4g}", f"{stage.flops:.4g}"]
        if stage.seconds is not None:
            days = stage.seconds / DAY / min(plan.hardware.devices, stage.runs)
            row += [f"{stage.seconds / 3600:,.4g}", f"{days:.3g}"]
            row += [f"{stage.seconds / 3600 * price:,.2f}"] if price is not None else []
        rows.append(row)
    return [
        *wrap_text(title),
        *text_table([heading, *rows]).splitlines(),
        *_notes(_sweep_notes(plan)),
        "",
        f"a run of {plan.fullest}, which takes the most memory:",
        "",
        *run_lines(fullest, price),
    ]


def _sweep_notes(plan: SweepPlan) -> list[str]:
    question, devices = plan.request.question, plan.hardware.devices
    notes = [f"each run on one device, {devices} at a time"] if devices > 1 else []
    notes += plan.request.remarks
    if question.tune and question.tune.stepped:
        runs = len(question.variants) * len(question.tune_seeds)
        notes.append(f"a best rate at an edge of the grid adds {runs} runs of tuning")
    if question.until_decided:
        notes.append(f"the results are at most these: {question.until_decided}")
    return notes


def _sized(size: float, unit: int = GIB) -> str:
    return f"{size / unit:,.2f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _pairs(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"{name:{width}}  {value}" for name, value in rows]


def _notes(notes: Iterable[str]) -> list[str]:
    return [line for note in notes for line in wrap_text(note, "- ", "  ")]
