"""What a report reads of a run's summary.json, each of its kind."""

from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e100, le=1e100)]  # whose squares are, too
Whole = Annotated[int, Field(ge=0, lt=1 << 63)]
_RECORDED = ConfigDict(extra="ignore", strict=True)


@dataclass(frozen=True, config=_RECORDED)
class Data:
    """The tokens of a run, and what stands for the text that they were made of."""

    fingerprint: str
    identity: dict[str, Any]
    corpus: dict[str, Any] = field(default_factory=dict)
    unigram: Number | None = None  # what the frequencies of tokens alone score on validation


@dataclass(frozen=True, config=_RECORDED)
class Summary:
    """Losses are in nats per token; what a run has not measured, or not yet, is None."""

    status: Literal["running", "finished", "preempted", "diverged", "failed"]
    identity: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    data: Data
    step: Whole = 0
    tokens: Whole | None = None
    seconds: Number | None = None
    val_loss: Number | None = None
    test_loss: Number | None = None
    best_val_loss: Number | None = None
    initial_loss: Number | None = None
    parameters: Whole | None = None
    flops: Number | None = None
    tokens_per_second: Number | None = None
    peak_memory: Whole | None = None
    diverged: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    device: str | None = None
    threads: Whole | None = None
    replicas: Whole | None = 1
    batch_chain: str | None = None
    continued_from: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
