"""Measures one GPU in ten minutes: our step and three others, digits, norms, small runs.

    python benchmarks/gpu.py --out DIR                              all of it, on a GPU
    python benchmarks/gpu.py --out DIR --only SECTION               one section, with all the time
    python benchmarks/gpu.py --out DIR --device cpu --tiny          a rehearsal on a CPU

Each section is a process with a limit. Each number is a line of DIR/numbers.jsonl once it is known;
DIR/gpu.json has them all, with device, versions, commit and how each section ended.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gpu_digits import measure_digits
from gpu_machine import measure_head, measure_machine, measure_norms
from gpu_section import NUMBERS, Section, read_numbers
from gpu_small import measure_small
from gpu_steps import compile_beforehand, measure_large, measure_steps, measure_variants
from rounds import write

from transformer_norms.errors import ConfigError
from transformer_norms.names import unknown
from transformer_norms.run import machine


class Planned(NamedTuple):
    seconds: int  # at most
    measure: Callable[[Section], None]


# In the order of their worth. All limits together are ten minutes.
PLAN = {
    "machine": Planned(25, measure_machine),
    "head": Planned(20, measure_head),
    "compile": Planned(135, compile_beforehand),
    "steps": Planned(100, measure_steps),
    "digits": Planned(75, measure_digits),
    "norms": Planned(35, measure_norms),
    "variants": Planned(80, measure_variants),
    "small": Planned(70, measure_small),
    "large": Planned(60, measure_large),
}
CLOSING = 3.0  # seconds of the budget that no section gets
LEAST = 10.0  # with fewer seconds left no section begins
PATIENCE = 10  # times as long may a rehearsal on a busy CPU take


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    typed = parser().parse_args(words)
    if typed.inside:
        measure_inside(Section(**json.loads(typed.inside)))
        return 0
    try:
        check(typed)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    typed.out.mkdir(parents=True, exist_ok=True)
    ended = drive(typed, ["python", "benchmarks/gpu.py", *words]).values()
    return 0 if all(one["ended"] == "finished" for one in ended) else 1


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measures one GPU in ten minutes.")
    add = parser.add_argument
    add("--out", type=Path, metavar="DIR", help="gets the numbers, as lines and as one JSON")
    add("--only", metavar="SECTION", help=", ".join(PLAN))
    add("--budget", type=float, default=580.0, metavar="SECONDS", help="of all sections")
    add("--device", default="cuda", choices=("cuda", "cpu"))
    add("--tiny", action="store_true", help="sizes and counts of a rehearsal")
    add("--inside", help=argparse.SUPPRESS)
    return parser


def check(typed: argparse.Namespace) -> None:
    if typed.out is None:
        raise ConfigError("--out DIR: is needed, a new folder for the numbers")
    if (typed.out / NUMBERS).exists() or typed.out.is_file():
        raise ConfigError(f"--out {typed.out}: holds numbers; name a new folder")
    if typed.only is not None and typed.only not in PLAN:
        raise ConfigError(f"--only {typed.only}: {unknown('section', typed.only, list(PLAN))}")
    if not LEAST + CLOSING < typed.budget < float("inf"):
        raise ConfigError(f"--budget {typed.budget:g}: seconds above {LEAST + CLOSING:g}")
    if typed.device == "cpu" and not typed.tiny:
        raise ConfigError("--device cpu: a CPU takes hours for these sizes; add --tiny")
    if typed.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: there is no GPU; --device cpu --tiny rehearses")


def drive(typed: argparse.Namespace, command: list[str]) -> dict[str, dict[str, Any]]:
    """Runs the sections, and writes the JSON after each. Returns how each ended."""
    last, sections = time.time() + typed.budget - CLOSING, dict[str, dict[str, Any]]()
    record = {"device": machine.device(typed.device), "command": command, "tiny": typed.tiny}
    record |= {**machine.commit(), "sections": sections}
    for name, planned in PLAN.items():
        left = last - time.time()
        if typed.only in (None, name):
            limit = left if typed.only else planned.seconds * (PATIENCE if typed.tiny else 1)
            if left < LEAST:
                sections[name] = {"ended": "left out for lack of time"}
            else:
                sections[name] = run_section(name, min(limit, left), typed)
            print(f"== {name}: {sections[name]}", flush=True)
            write(typed.out / "gpu.json", record | {"numbers": read_numbers(typed.out)})
    return sections


def run_section(name: str, limit: float, typed: argparse.Namespace) -> dict[str, Any]:
    """Runs a section as a process, ends all processes that it began, and returns how it ended."""
    begun, log = time.time(), typed.out / f"{name}.log"
    section = Section(name, typed.device, typed.tiny, str(typed.out), begun + limit)
    with log.open("w") as errors:
        process = subprocess.Popen(
            section.command(), stderr=errors, env=environment(typed.tiny), start_new_session=True
        )
        try:
            code = process.wait(limit)
            ended = f"failed: {last_line(log)}" if code else "finished"
        except subprocess.TimeoutExpired:
            ended = "ran over its limit"
        finally:
            kill_group(process)
    return {"ended": ended, "seconds": round(time.time() - begun, 1), "limit": round(limit, 1)}


def kill_group(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_line(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["no word"])[-1][:300]


def environment(tiny: bool) -> dict[str, str]:
    """Returns the environment of a section: all share the compiled kernels."""
    kernels = str(Path(tempfile.gettempdir()) / f"transformer_norms_kernels_{os.getuid()}")
    own = {"TORCHINDUCTOR_CACHE_DIR": kernels, "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
    own |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # is read before the first product
    own |= {"OMP_NUM_THREADS": "1"} if tiny else {}  # threads of a busy CPU wait for each other
    paths = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**own, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def measure_inside(section: Section) -> None:
    if section.tiny:  # functions are traced; inductor takes minutes on a CPU
        torch.compile = partial(torch.compile, backend="eager")
    PLAN[section.name].measure(section)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # which ends the section too
    sys.exit(main())
