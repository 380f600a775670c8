"""The share of a sweep's time that goes into training steps and evaluations, by launcher; and the
runs an hour. Each launcher runs the same sweep, as the command that a user types, in a new folder.

    python benchmarks/sweep.py [--launchers basic,pool] [--steps N] [--out FILE] [KEY=VALUE...]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rounds import check_out, write

from transformer_norms.config.chosen_files import check_names
from transformer_norms.errors import ConfigError
from transformer_norms.run import machine
from transformer_norms.storage.reading import read_json

ROOT = Path(__file__).resolve().parents[1]
SWEEP = "sweep=noise data=stories tokenizer=byte tracking=none".split()
STEPS = 1000  # some 40 seconds a run on two cores, and there are twenty


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What a sweep spends besides training.")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="change the sweep")
    parser.add_argument("--launchers", default="basic,pool", help="one after another")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each run")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    typed = parser.parse_intermixed_args(arguments)
    launchers, sweep = typed.launchers.split(","), [*SWEEP, f"trainer.steps={typed.steps}"]
    try:
        check_out(typed.out)
        check_names([f"launcher={launcher}" for launcher in launchers])
        results = [shown(measure(launcher, [*sweep, *typed.overrides])) for launcher in launchers]
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        return error.returncode  # the command itself has said why
    write(typed.out, {**machine.commit(), "launchers": results})
    return 0


def shown(result: dict[str, Any]) -> dict[str, Any]:
    print(line(result), flush=True)
    return result


def measure(launcher: str, sweep: list[str]) -> dict[str, Any]:
    """Wall time of the whole command, imports and tokens included, and what its runs recorded."""
    command = [sys.executable, str(ROOT / "train.py"), *sweep, f"launcher={launcher}"]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": folder}
        environment.pop("TRANSFORMER_NORMS_CACHE", None)
        begun = time.perf_counter()
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        wall = time.perf_counter() - begun
        answer = json.loads(done.stdout.splitlines()[-1])
        study = Path(folder, "runs", answer["study"])
        runs = [read_json(file) for file in sorted(study.glob("*/summary.json"))]
    assert answer["finished"] == len(runs) == answer["runs"], answer
    return {
        "launcher": launcher,
        "command": " ".join(command[2:]),
        "workers": 2 if launcher == "pool" else 1,
        "wall": round(wall, 2),
        "runs": [
            {key: run[key] for key in ("seconds", "evaluation_seconds", "threads", "val_loss")}
            for run in runs
        ],
    }


def line(result: dict[str, Any]) -> str:
    runs, room = result["runs"], result["wall"] * result["workers"]
    steps = sum(run["seconds"] for run in runs)
    evaluations = sum(run["evaluation_seconds"] for run in runs)
    return (
        f"{result['launcher']}: {len(runs)} runs in {result['wall']:.0f} s, "
        f"{3600 * len(runs) / result['wall']:.0f} runs an hour; "
        f"steps {steps / room:.1%}, evaluations {evaluations / room:.1%}, "
        f"rest {1 - (steps + evaluations) / room:.1%}; "
        f"{(steps + evaluations) / len(runs):.1f} s a run"
    )


if __name__ == "__main__":
    sys.exit(main())
