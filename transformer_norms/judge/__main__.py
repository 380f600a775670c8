"""Decides whether a change makes training better, by pairs of runs of one seed.

Trains BASELINE and CANDIDATE in pairs of one seed, until the differences of
their losses decide, or the budget is spent. One error rate of 5 % covers all
proposals of a ledger.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from transformer_norms.commands.terminal import (
    PROGRAM,
    Parser,
    command,
    number_from,
    print_line,
    typed_path,
)
from transformer_norms.judge.decision import EFFECT
from transformer_norms.judge.ledger import (
    FIRST,
    MOST_PAIRS,
    Party,
    Proposal,
    add_pair,
    enter_proposal,
    read_ledger,
)
from transformer_norms.judge.pairs import train_pair
from transformer_norms.judge.parties import read_parties
from transformer_norms.progress import clock, say
from transformer_norms.signals import AGAIN, Preempted, Stopping

CODES = {"better": 0, "not better": 6, "undecided": 7}
_EPILOG = """
BASELINE and CANDIDATE are each one of:
  overrides   transformer-norms judge placement=pre placement=peri
              transformer-norms judge "" "norm=derf init=scaled"
  a run       transformer-norms judge RUN norm=layernorm
  a checkout  transformer-norms judge ../before . --with model=nano

Several overrides are one quoted text; "" is the default. A CANDIDATE of
overrides changes a BASELINE that is a run or a checkout. A run is its folder,
or a part of its name below ./runs. A checkout is a folder with
transformer_norms/; its own code trains. --with gives both sides the same sizes
and steps.

  better      its loss is lower by --effect, and the interval lies below zero
  not better  it is not better by --effect or more, or it failed to train
  undecided   the budget is spent, or more pairs would hardly show a gain

The chance that a ledger ever holds a false "better" is at most 5 %, however
many proposals it holds, and whenever you look. Each proposal has seeds that no
earlier answer has seen. --share-seeds trains the baseline once for all: do so
if no proposal is made from an earlier answer, else the chance is larger. The
same command goes on with an undecided proposal, and shows a decided one.

The last line on stdout is JSON. Exit codes:
0 better, 6 not better, 7 undecided, 75 stopped (the same command goes on),
2 wrong input, 1 an unexpected error.
"""


def make_parser() -> Parser:
    parser = Parser(prog=f"{PROGRAM} judge", description=__doc__, epilog=_EPILOG)
    parser.add_argument("baseline", metavar="BASELINE", help="the present state")
    parser.add_argument("candidate", metavar="CANDIDATE", help="what may be better")
    parser.add_argument(
        "--with", dest="common", default="", metavar="OVERRIDES",
        help="overrides for both, one text",
    )  # fmt: skip
    parser.add_argument(
        "--effect", type=number_from(0, kind=float), default=EFFECT, metavar="NATS",
        help="smallest gain worth keeping (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--most", type=number_from(1, MOST_PAIRS), default=20, metavar="PAIRS",
        help="at most (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--minutes", type=number_from(0, kind=float), metavar="M",
        help="begin no pair that would end later",
    )  # fmt: skip
    parser.add_argument(
        "--share-seeds", action="store_true",
        help="the same seeds for all proposals: the baseline is trained once",
    )  # fmt: skip
    parser.add_argument(
        "--ledger", type=typed_path, default=Path("runs/judge.json"), metavar="FILE",
        help="the series of proposals (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--proposals", type=number_from(1), metavar="N",
        help=f"how many share half of the 5 %% of a new ledger (default: {FIRST})",
    )  # fmt: skip
    return parser


def _judge_or_stop(typed: argparse.Namespace) -> int:
    stopping = Stopping(what="the runs stop")
    stopping.has_unsaved_steps = True  # those of its children, which nothing else would stop
    try:
        with stopping:
            return _judge(typed)
    except (KeyboardInterrupt, Preempted):
        say("stopped; the same command goes on")
        return AGAIN


def _judge(typed: argparse.Namespace) -> int:
    read_ledger(typed.ledger)  # a wrong file is answered first
    parties = read_parties(typed.baseline, typed.candidate, typed.common)
    proposal = enter_proposal(
        typed.ledger, *parties, typed.effect, typed.share_seeds, typed.proposals
    )
    names = (words or "the default" for words in (typed.candidate, typed.baseline))
    say(
        f"proposal {proposal.number} of {typed.ledger}, level {proposal.level:.3g}: "
        f"{' against '.join(names)}; {len(proposal.pairs)} of at most {typed.most} pairs are there"
    )
    proposal, reason = _train_pairs(proposal, parties, typed)
    decision = proposal.weigh(typed.most)
    answer = {
        "decision": decision.word,
        "difference": decision.difference,
        "low": decision.low,
        "high": decision.high,
        "level": proposal.level,
        "pairs": len(proposal.pairs),
        "runs": [run for pair in proposal.pairs for run in pair.runs],
        "proposal": proposal.number,
        "ledger": str(typed.ledger),
        "reason": reason or decision.reason,
    }
    say(f"{decision.word}: {answer['reason']}")
    print_line(json.dumps(answer, allow_nan=False))
    return CODES[decision.word]


def _train_pairs(
    proposal: Proposal, parties: Sequence[Party], typed: argparse.Namespace
) -> tuple[Proposal, str]:
    """Trains pairs until they decide, and enters each. Returns the proposal, and why it ended if
    that is not what the pairs say."""
    began, longest = time.monotonic(), 0.0
    while not proposal.weigh(typed.most).over:
        start = time.monotonic()
        if typed.minutes is not None and start - began + longest > 60 * typed.minutes:
            return proposal, f"the {typed.minutes:g} minutes are spent"
        pair = train_pair(parties, proposal.next_seed)
        proposal = add_pair(typed.ledger, proposal.number, pair, typed.most)
        longest = max(longest, time.monotonic() - start)
        _say_pair(proposal, typed.most, longest)
    return proposal, ""


def _say_pair(proposal: Proposal, most: int, longest: float) -> None:
    """Says what the last pair gave, what all give, and how long it can take yet."""
    pair, decision = proposal.pairs[-1], proposal.weigh(most)
    if decision.difference is None:
        say(f"pair {len(proposal.pairs)}, seed {pair.seed}: {decision.reason}")
        return
    low, high = ("?" if end is None else f"{end:+.4f}" for end in (decision.low, decision.high))
    left = (most - len(proposal.pairs)) * longest
    say(
        f"pair {len(proposal.pairs)}, seed {pair.seed}: {pair.difference:+.4f} in {pair.loss}; "
        f"mean {decision.difference:+.4f}, interval {low} to {high}: {decision.word}"
        + ("" if decision.over else f"; at most {clock(left)} left")
    )


main = command(make_parser, _judge_or_stop)

if __name__ == "__main__":
    sys.exit(main())
