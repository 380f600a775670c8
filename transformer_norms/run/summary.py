"""summary.json: one schema for the run that writes it and for all readers."""

from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from transformer_norms.data.ngrams import ngram_name
from transformer_norms.kinds import Measured, Whole
from transformer_norms.storage.files import write_json
from transformer_norms.storage.reading import is_there, read_typed

ENDED = ("finished", "diverged")  # results: left untouched, if the command is typed again
FILE = "summary.json"
ELSEWHERE = ", then "  # between the devices of a run that went on elsewhere
Status = Literal["running", "finished", "preempted", "diverged", "failed"]
Sizes = dict[str, Whole]  # of a part of the corpus: tokens, bytes, documents
_LIMIT = 1 << 22  # bytes
# A file of another version of the project may have keys that this one does not know.
_RECORDED = ConfigDict(extra="ignore", strict=True)


@dataclass(frozen=True, config=_RECORDED, kw_only=True)
class Data:
    """The tokens of a run, and the text that they were made of."""

    identity: dict[str, Any]
    fingerprint: str
    corpus: dict[str, Any] = field(default_factory=dict)
    tokenizer: dict[str, Any] = field(default_factory=dict)
    split: str | None = None
    val_fraction: Measured | None = None
    test_fraction: Measured | None = None  # of the tail split
    separated: bool | None = None  # whether a token ends each document
    repeated: Measured | None = None  # share of the documents that were left out as copies
    notes: list[str] = field(default_factory=list)
    train: Sizes = field(default_factory=dict)
    val: Sizes = field(default_factory=dict)
    test: Sizes = field(default_factory=dict)
    uniform: Measured | None = None  # the loss where every token is equally likely
    # The losses of the n-grams of order 1, 2, ... on val, and on test if there is one.
    ngrams: dict[str, list[Measured]] = field(default_factory=dict)
    ngram_tokens: Whole | None = None  # how many training tokens they were counted on
    floor: Measured | None = None  # the text's entropy, in nats per byte, where it is known

    def reference_lines(self, part: str = "val") -> dict[str, float]:
        """Returns the losses that need no model, in nats per token of a part, by name."""
        lines = {"uniform": self.uniform} if self.uniform is not None else {}
        lines |= {ngram_name(k): loss for k, loss in enumerate(self.ngrams.get(part, []), start=1)}
        sizes = getattr(self, part)
        if self.floor is not None and sizes.get("tokens"):
            lines["entropy floor"] = self.floor * sizes["bytes"] / sizes["tokens"]
        return lines

    def introduction(self, parameters: int) -> str:
        """Returns the line before training: sizes of model and text, and losses to compare
        with."""
        lines = ", ".join(f"{name} {value:.3f}" for name, value in self.reference_lines().items())
        floor = "" if self.floor is None else f" ({self.floor:.5f} nats per byte)"
        sizes = f"{self.train['tokens']:,} tokens to train on, {self.val['tokens']:,} held out"
        return f"{parameters:,} parameters; {sizes}; nats per token: {lines}{floor}"


@dataclass(frozen=True, config=_RECORDED, kw_only=True)
class Summary:
    """The record of a run. Losses are in nats per token. None: not measured, or not yet."""

    schema: Literal[1] = 1
    status: Status
    step: Whole = 0
    steps: Whole | None = None
    tokens: Whole | None = None
    seconds: Measured | None = None
    evaluation_seconds: Measured | None = None
    val_loss: Measured | None = None
    best_val_loss: Measured | None = None
    test_loss: Measured | None = None
    test_bpb: Measured | None = None
    average_loss: Measured | None = None  # of trainer.average: on val at the end, and on test
    test_average_loss: Measured | None = None
    val_blocks: list[Measured] = field(default_factory=list)  # losses by blocks of the text
    test_blocks: list[Measured] = field(default_factory=list)
    initial_loss: Measured | None = None
    start: tuple[Measured | None, Measured | None, Measured | None] | None = (
        None  # of training/probes.py
    )
    spikes: Whole | None = None
    parameters: Whole | None = None
    flops: Measured | None = None
    tokens_per_second: Measured | None = None
    model_flops_utilisation: Measured | None = None
    peak_memory: Whole | None = None
    diverged: str | None = None  # why
    trained: bool | None = None  # whether it did not diverge, and is better than the unigram
    error: str | None = None  # the traceback of a failed run
    choices: dict[str, str] = field(default_factory=dict)
    identity: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    continued_from: str | None = None
    branched_from: str | None = None  # a run of a shorter horizon, whose first steps it shares
    branch_step: Whole | None = None  # how many
    batch_chain: str | None = None  # a hash of every batch that was read, in order
    data: Data
    versions: dict[str, str] = field(default_factory=dict)
    commit: str | None = None
    dirty: bool | None = None
    source: dict[str, str] = field(default_factory=dict)
    device: str | None = None
    threads: Whole | None = None
    replicas: Whole | None = None  # of the model, in each process
    compile: str | None = None  # of training/graphs/compiling.py, with what could not be compiled
    parallel: str | None = None
    ranks: Whole | None = None  # processes; none is one
    micro_batches: Whole | None = None  # of a step
    stacked: dict[str, Any] | None = None  # the last stack that it was in
    weights_only: bool = False
    warnings: list[str] = field(default_factory=list)
    process: dict[str, Any] = field(default_factory=dict)  # pid and host of the last trainer

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def parallel_text(self) -> str:
        """`ddp on 2 processes`, or `none`."""
        several = (self.ranks or 1) > 1
        return f"{self.parallel} on {self.ranks} processes" if several else "none"

    def values(self) -> dict[str, Any]:
        """Returns plain values, as the file holds them."""
        return asdict(self)

    def write(self, folder: Path) -> None:
        """Replaces the folder's summary.json, durably."""
        write_json(folder / FILE, self.values())


def read_summary(folder: Path) -> Summary | None:
    """Returns the summary of a run folder, or None if the folder has none yet. Raises ConfigError,
    one line that names the file, where it is damaged."""
    file = folder / FILE
    if not is_there(file):
        return None
    return read_typed(file, Summary, _LIMIT)
