"""From `python train.py` typed to the first optimizer step, beside a bare `import torch`.

Tokens are cached, the mirror of W&B is on, offline. Every time is of a process of its own, rounds
interleaved; what was measured is written whole.

    python benchmarks/startup.py [--rounds N] [--large] [--out FILE] [KEY=VALUE...]
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rounds import Times, check_out, ratios, write

from transformer_norms.config.compose import compose
from transformer_norms.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
TRAIN = str(ROOT / "train.py")
TORCH, REFUSED, FIRST = "import torch", "a wrong name refused", "first step"
LARGE = "first step, model=124m"
# A row a step shows the first; more steps than anyone waits for.
RUN = "data=stories tokenizer=byte trainer.log_every=1 trainer.steps=1000000".split()
# The default would be minutes of a batch, which is no part of starting.
BASE = "model=124m trainer.batch_size=1".split()
LOOK_EVERY, PATIENCE = 0.005, 300.0  # seconds
Rows = Mapping[str, Callable[[], float]]  # seconds, by row


def main(arguments: Sequence[str] | None = None) -> int:
    typed = parser().parse_intermixed_args(arguments)
    if typed.rounds < 2:
        print(f"--rounds {typed.rounds}: at least 2 are needed", file=sys.stderr)
        return 2
    try:
        check_out(typed.out)
        compose([*RUN, *typed.overrides])
        with tempfile.TemporaryDirectory() as folder:
            times = by_turns(rows(Path(folder), typed), typed.rounds)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    result = {
        "seconds": times,
        "median": {name: median(values) for name, values in times.items()},
        "of_torch": {name: median(ratios(times, name, TORCH)) for name in times},
    }
    print("\n".join(table(result)))
    write(typed.out, {"run": RUN, "overrides": typed.overrides, **result})
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="The time until the first optimizer step.")
    add = parser.add_argument
    add("overrides", nargs="*", metavar="KEY=VALUE", help="change the run")
    add("--rounds", type=int, default=7)
    add("--large", action="store_true", help=f"also of {' '.join(BASE)}: some GiB of disk")
    add("--out", type=Path, metavar="FILE.json", help="every round's times, machine, versions")
    return parser


def rows(folder: Path, typed: argparse.Namespace) -> Rows:
    """All that is timed, in a folder with a token cache of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "TRANSFORMER_NORMS_CACHE": str(folder / "cache"),
        "WANDB_MODE": "offline",
    }
    timed = {
        TORCH: partial(ended, ["-c", "import torch"], 0, folder, environment),
        REFUSED: partial(ended, [TRAIN, "norm=nosuch"], 2, folder, environment),
        FIRST: partial(first_step, [TRAIN, *RUN, *typed.overrides], folder, environment),
    }
    if typed.large:
        large = [TRAIN, *RUN, *BASE, *typed.overrides]
        timed[LARGE] = partial(first_step, large, folder, environment)
    return timed


def by_turns(rows: Rows, count: int) -> Times:
    """One time of each a round, another first in each; before them one of each that fills caches
    and is not kept."""
    names: list[str] = list(rows)
    times: Times = {name: [] for name in names}
    for name in names:
        rows[name]()
    for i in range(count):
        place = i % len(names)
        for name in names[place:] + names[:place]:
            times[name].append(rows[name]())
    return times


def ended(arguments: list[str], code: int, folder: Path, environment: dict[str, str]) -> float:
    """Seconds until this Python, so called, has ended."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    seconds = time.perf_counter() - begun
    if done.returncode != code:
        raise RuntimeError(f"{arguments[-1]}: code {done.returncode}\n{done.stderr.strip()}")
    return seconds


def first_step(arguments: list[str], folder: Path, environment: dict[str, str]) -> float:
    """Seconds until the first step's row lies in the run's folder. Then the run is stopped, and
    forgotten once its mirror has ended as well."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not written(folder):
            if process.poll() is not None:
                _, said = process.communicate()
                raise RuntimeError(said.strip() or f"train.py ended with code {process.returncode}")
            if time.perf_counter() - begun > PATIENCE:
                raise RuntimeError(f"no step within {PATIENCE:.0f} s")
            time.sleep(LOOK_EVERY)
        return time.perf_counter() - begun
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()
        shutil.rmtree(folder / "runs", ignore_errors=True)


def written(folder: Path) -> bool:
    return any(file.stat().st_size for file in folder.glob("runs/*/*/metrics.jsonl"))


def table(result: dict[str, Any]) -> list[str]:
    """Under 80 columns."""
    lines = [
        f"{len(result['seconds'][TORCH])} rounds",
        f"{'':24}{'seconds':>9}{'quartiles':>18}{'of import torch':>17}",
    ]
    for name, values in result["seconds"].items():
        low, middle, high = quantiles(values, method="inclusive")
        of_torch = result["of_torch"][name]
        lines.append(f"{name:24}{middle:9.2f}{f'{low:.2f} to {high:.2f}':>18}{of_torch:17.2f}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
