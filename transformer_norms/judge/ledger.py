"""The ledger of a series of proposals: one file, and one error rate for all that it will ever hold.

Proposal k gets its own level, in blocks. Half of ALPHA is shared equally by the first N
proposals, a quarter by the next 2 N, an eighth by the next 4 N, and so on:

    level_k = ALPHA / (2 N 4^b)      in block b = floor(log2((k - 1) / N + 1)),

so that the levels of an endless series sum to ALPHA. A candidate that is not better is called
better with a probability of at most level_k, at any look (decision.py). The probability of any
false `better` in the series is at most the sum (Boole's inequality), however the runs depend on
each other. Alpha-investing (Foster & Stine 2008, doi:10.1111/j.1467-9868.2007.00643.x) gains level
with each discovery, and bounds a share of the discoveries instead. This is the plain bound.

Each proposal has its own seeds, which no earlier answer of the ledger knows: the bound holds
however it was chosen. Proposals that share their seeds train the baseline only once. The bound then
asks that no candidate was chosen because a relative of it was lucky with just these seeds, and a
program that makes its next proposal from the answers does choose so.

A proposal is entered before its first run. So a command that was killed keeps its number.
"""

from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from transformer_norms.comparison.sweep_record import Hash
from transformer_norms.errors import ConfigError
from transformer_norms.judge.decision import Decision, Word, decide
from transformer_norms.kinds import Measured, Whole
from transformer_norms.storage.files import make_folder, remove_leftovers, write_json
from transformer_norms.storage.locks import wait_for_lock
from transformer_norms.storage.reading import is_there, read_typed

ALPHA = 0.05  # the probability of any false `better` in the series
FIRST = 20  # N, unless the first command says another
MOST_PAIRS = 1000  # of a proposal
SHARED = 0  # the first seed of proposals that share their seeds
_STRICT = ConfigDict(extra="forbid", strict=True)


def level_of(number: int, first: int) -> float:
    """Returns the level of proposal `number`, counted from 1; `first` is N."""
    block = ((number - 1) // first + 1).bit_length() - 1
    return ALPHA / (2 * first * 4**block)


@dataclass(frozen=True, config=_STRICT)
class Party:
    """One side of a proposal: the words that were typed, the folder whose package trains it and the
    arguments of that training, the hash of its code, its commit if there is one, and its identity,
    a hash of code and config."""

    typed: str
    root: str
    arguments: list[str]
    code: Hash
    commit: str | None
    identity: Hash


@dataclass(frozen=True, config=_STRICT)
class Pair:
    """The runs of one seed: folders, losses in nats per token, and why a run failed to train."""

    seed: Whole
    runs: tuple[str, str]  # baseline, candidate
    loss: Literal["test_loss", "val_loss"]
    losses: tuple[Measured | None, Measured | None]  # None: diverged
    failed: tuple[str | None, str | None] = (None, None)

    @property
    def difference(self) -> float:
        """candidate - baseline, of a pair in which both trained."""
        baseline, candidate = self.losses
        assert baseline is not None
        assert candidate is not None
        return candidate - baseline


@dataclass(frozen=True, config=_STRICT)
class Proposal:
    """A candidate against a baseline. `decision` is undecided until pairs decide."""

    number: Annotated[int, Field(ge=1)]
    level: Annotated[float, Field(gt=0, lt=1)]
    baseline: Party
    candidate: Party
    effect: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    first_seed: Whole
    pairs: list[Pair] = field(default_factory=list)
    decision: Word = "undecided"
    reason: str = ""

    @property
    def question(self) -> tuple[str, str, float, bool]:
        """Two proposals of one question are one proposal."""
        shares = self.first_seed == SHARED
        return self.baseline.identity, self.candidate.identity, self.effect, shares

    @property
    def next_seed(self) -> int:
        return self.first_seed + len(self.pairs)

    def weigh(self, most: int) -> Decision:
        """Returns what the pairs decide. A run that failed to train decides at once: it has no
        difference, and leaving its pair out would be a choice of those that agree."""
        for pair in self.pairs:
            baseline, candidate = pair.failed
            if baseline:
                reason = f"the baseline failed to train with seed {pair.seed}: {baseline}"
                return Decision(over=True, reason=reason)
            if candidate:
                reason = f"the candidate failed to train with seed {pair.seed}: {candidate}"
                return Decision("not better", over=True, reason=reason)
        return decide([pair.difference for pair in self.pairs], self.level, self.effect, most)


@dataclass(frozen=True, config=_STRICT)
class Ledger:
    """`first` is N: the number of proposals that share half of ALPHA."""

    first: Annotated[int, Field(ge=1)] = FIRST
    proposals: list[Proposal] = field(default_factory=list)
    schema: Literal[1] = 1


def read_ledger(path: Path) -> Ledger:
    """Returns the ledger in a file, an empty one without a file. Raises ConfigError if the
    file holds no ledger."""
    return read_typed(path, Ledger) if is_there(path) else Ledger()


def enter_proposal(
    path: Path,
    baseline: Party,
    candidate: Party,
    effect: float,
    shares: bool = False,
    first: int | None = None,
) -> Proposal:
    """Returns the proposal of these two parties, entered now unless it was before.

    It has its own seeds, unless it `shares` those from SHARED on. `first` is N if it was typed;
    ConfigError if the ledger was begun with another.
    """
    make_folder(path.parent)
    remove_leftovers(path.parent)
    with wait_for_lock(path.parent):  # the file itself is replaced, so its folder is locked
        ledger = read_ledger(path)
        if first is not None and first != ledger.first:
            if ledger.proposals:
                raise ConfigError(
                    f"--proposals {first}: {path} was begun with {ledger.first}; leave it out, or "
                    "begin another --ledger"
                )
            ledger = replace(ledger, first=first)
        number = len(ledger.proposals) + 1
        level = level_of(number, ledger.first)
        seed = SHARED if shares else MOST_PAIRS * number
        proposal = Proposal(number, level, baseline, candidate, effect, seed)
        for earlier in ledger.proposals:
            if earlier.question == proposal.question:
                return earlier
        write_json(path, asdict(replace(ledger, proposals=[*ledger.proposals, proposal])))
        return proposal


def add_pair(path: Path, number: int, pair: Pair, most: int) -> Proposal:
    """Adds a pair to proposal `number` and decides again. Two commands may train one proposal: what
    came first stays. Returns the proposal as the file has it now."""
    with wait_for_lock(path.parent):
        ledger = read_ledger(path)
        proposals = list(ledger.proposals)
        proposal = proposals[number - 1]
        if proposal.decision != "undecided" or pair.seed != proposal.next_seed:
            return proposal
        proposal = replace(proposal, pairs=[*proposal.pairs, pair])
        decision = proposal.weigh(most)
        proposal = replace(proposal, decision=decision.word, reason=decision.reason)
        proposals[number - 1] = proposal
        write_json(path, asdict(replace(ledger, proposals=proposals)))
        return proposal
