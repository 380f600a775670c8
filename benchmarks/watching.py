"""What it costs to watch a run: the time of a step that is watched over that of one that is not.
Same process, same batches, rounds interleaved; what was measured is written whole. W&B's mirror is
another process, so its rounds are long enough for it to look several times, and it is held in those
in between.

    python benchmarks/watching.py [--sizes A,B] [--rounds N] [--seconds S] [--out FILE] [KEY=VALUE]
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from contenders import Size, ours, trained
from rounds import Steps, each_size, interleaved, ratios, steps_a_round

from transformer_norms.config.compose import compose
from transformer_norms.config.saved import to_yaml
from transformer_norms.run.metrics import MetricsFile
from transformer_norms.storage.files import write_json
from transformer_norms.tracking.mirror import Mirror
from transformer_norms.training.trainer import Trainer

SIZES = "4-128-128-16-257,6-384-256-8-257"  # the default run's, and a larger one
ALONE = "not watched"
ROUND, START = 3.0, 8.0  # seconds: of a round of the mirror's, and until it has begun


class Watch(NamedTuple):
    """A way to watch: a step that is watched, and of how many in a run one is."""

    step: Callable[[], Any]
    every: int


def watches(size: Size, overrides: list[str], folder: Path) -> dict[str, Watch]:
    """All that is measured here by name. Each has a trainer of its own, from the same weights."""
    every = compose(overrides).trainer.probe_every
    return {"probes": Watch(probed(size, overrides, folder), every)}


def probed(size: Size, overrides: list[str], folder: Path) -> Callable[[], Any]:
    """A step with its probe, and its row in a file."""
    trainer = trainer_of(size, overrides, every=1)
    rows = MetricsFile(folder / f"{size}.jsonl")

    def step() -> None:
        trained(trainer)
        rows.append({"step": trainer.step, "tokens": trainer.tokens, **trainer.probed})

    return step


class Mirrored:
    """A run that the mirror follows, offline, or that goes on while the mirror is held."""

    def __init__(self, size: Size, overrides: list[str], folder: Path) -> None:
        config = compose([*overrides, "tracking.mode=offline"])
        self.trainer, self.every = (trainer_of(size, overrides, every=0), config.trainer.log_every)
        run = folder / "study" / "run"
        run.mkdir(parents=True)
        (run / "config.yaml").write_text(to_yaml(config))
        summary = {"status": "running", "identity": "0" * 16}
        write_json(run / "summary.json", summary | {"data": {"fingerprint": "", "identity": {}}})
        self.rows, self.others = MetricsFile(run / "metrics.jsonl"), MetricsFile(folder / "others")
        self.mirror = Mirror(config.tracking)
        for _ in range(self.every):
            self.step(self.rows)
        self.mirror.follow(run)
        time.sleep(START)  # W&B is imported and opened once in a command

    def followed(self) -> None:
        self._tell(signal.SIGCONT)
        self.step(self.rows)

    def alone(self) -> None:
        self._tell(signal.SIGSTOP)
        self.step(self.others)

    def step(self, rows: MetricsFile) -> None:
        trained(self.trainer)
        if self.trainer.step % self.every == 0:
            row = {"step": self.trainer.step, "tokens": self.trainer.tokens}
            rows.append({**row, "train/loss": self.trainer.last_loss, "lr": 0.1, "grad_norm": 1.0})

    def _tell(self, word: int) -> None:
        process = self.mirror._process
        assert process is not None
        os.killpg(process.pid, word)

    def close(self) -> None:
        self._tell(signal.SIGCONT)
        self.mirror.close()


def trainer_of(size: Size, overrides: list[str], every: int) -> Trainer:
    typed = [text for text in overrides if not text.startswith("trainer.probe_every=")]
    return ours(size, typed, size.batches(), probe_every=every)


def main(arguments: Sequence[str] | None = None) -> int:
    return each_size(parser().parse_intermixed_args(arguments), measure, table, {})


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What it costs to watch a run.")
    add = parser.add_argument
    add("overrides", nargs="*", metavar="KEY=VALUE", help="the run, beside its sizes")
    add("--sizes", default=SIZES, metavar="DEPTH-WIDTH-CONTEXT-BATCH-VOCABULARY,...")
    add("--rounds", type=int, default=60, help="at most this many for each size")
    add("--seconds", type=float, default=60.0, help="of rounds for each size, about")
    add("--out", type=Path, metavar="FILE.json", help="every round's times, machine, versions")
    return parser


def measure(size: Size, typed: argparse.Namespace) -> dict[str, Any]:
    """Every way to watch at one size, as the JSON holds it. `one` is in steps that are not
    watched; `share` is of a run's time, where one step of `every` is watched."""
    alone = trainer_of(size, typed.overrides, every=0)
    with tempfile.TemporaryDirectory() as folder:
        watched = watches(size, typed.overrides, Path(folder))
        steps: Steps = {ALONE: lambda: trained(alone)}
        steps |= {name: watch.step for name, watch in watched.items()}
        count = steps_a_round(steps, typed.seconds / typed.rounds)
        times = interleaved(steps, count, typed.rounds, typed.seconds)
        mirror = mirrored(size, typed, Path(folder))
    one = {name: [ratio - 1 for ratio in ratios(times, name, ALONE)] for name in watched}
    return {
        "size": str(size),
        "steps_a_round": count,
        "seconds": times,
        "every": {name: watch.every for name, watch in watched.items()},
        "one": {name: quartiles(values) for name, values in one.items()},
        "share": {name: median(one[name]) / watch.every for name, watch in watched.items()},
        "mirror": mirror,
    }


def mirrored(size: Size, typed: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The same of the mirror; `share` is of a run's time, quartiles of the ratios less one."""
    run = Mirrored(size, typed.overrides, folder)
    try:
        steps: Steps = {"followed": run.followed, "alone": run.alone}
        count = steps_a_round(steps, 2 * ROUND)
        times = interleaved(steps, count, typed.rounds, typed.seconds)
    finally:
        run.close()
    share = quartiles([ratio - 1 for ratio in ratios(times, "followed", "alone")])
    return {"steps_a_round": count, "seconds": times, "share": share}


def quartiles(values: list[float]) -> list[float]:
    return quantiles(values, method="inclusive")


def table(result: dict[str, Any]) -> list[str]:
    """Under 80 columns."""
    alone = result["seconds"][ALONE]
    lines = [
        f"\n{result['size']}: a step takes {1e3 * median(alone):.1f} ms; "
        f"{len(alone)} rounds of {result['steps_a_round']}",
        f"{'':12}{'one, in steps':>15}{'quartiles':>18}{'every':>8}{'share of a run':>18}",
    ]
    for name, (low, middle, high) in result["one"].items():
        lines.append(
            f"{name:12}{middle:15.3f}{f'{low:.3f} to {high:.3f}':>18}"
            f"{result['every'][name]:8}{result['share'][name]:18.2%}"
        )
    mirror = result["mirror"]
    low, middle, high = mirror["share"]
    rounds = len(mirror["seconds"]["alone"])
    return [
        *lines,
        f"mirror: {middle:.2%} of a run (quartiles {low:.2%} to {high:.2%}), {rounds} rounds of "
        f"{mirror['steps_a_round']}",
    ]


if __name__ == "__main__":
    sys.exit(main())
