"""A section of gpu.py: its device, its sizes, its end, and the file of its numbers."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any, TypeVar

from contenders import Size
from rounds import WARM, timed
from side_by_side import synchronized

from transformer_norms.run import machine
from transformer_norms.training.accelerators import peak_of

NUMBERS = "numbers.jsonl"
PRODUCT = "product of two square matrices, TFLOP/s"
Step = Callable[[], Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Section:
    """`part` is the share of a section that a further process computes. The section is killed when
    `time.time()` is `end`. A tiny one rehearses on a CPU."""

    name: str
    device: str
    tiny: bool
    folder: str
    end: float
    part: str = ""

    def pick(self, full: T, tiny: T) -> T:
        return tiny if self.tiny else full

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self.end - time.time()

    def size(self, sequences: int = 16) -> Size:
        """GPT-2 of 124M parameters."""
        return self.pick(Size(12, 768, 1024, sequences, 50257), Size(2, 64, 16, 2, 97))

    def small_size(self) -> Size:
        """A run of a sweep: 0.8M parameters."""
        return self.pick(Size(4, 128, 128, 16, 257), Size(1, 32, 16, 2, 31))

    def say(self, what: str, **numbers: Any) -> None:
        """Writes a line at once: what is measured later may fail."""
        line = json.dumps({"section": self.name, "what": what, **rounded(numbers)})
        print(line[:200], flush=True)
        with (Path(self.folder) / NUMBERS).open("a") as file:
            file.write(line + "\n")

    @contextmanager
    def measuring(self, what: str) -> Iterator[None]:
        """An error inside costs this measurement alone, and is written in its place."""
        try:
            yield
        except Exception as error:
            text = str(error).partition("\n")[0][:300]
            self.say(what, error=f"{type(error).__name__}: {text}")

    def command(self, **changes: Any) -> list[str]:
        """Returns the command of a process that runs this section, or another part of it."""
        program = Path(__file__).with_name("gpu.py")
        return [sys.executable, str(program), "--inside", json.dumps(asdict(self) | changes)]

    def peaks(self) -> dict[str, float | None]:
        """Returns the FLOP/s of bf16 products, as the data sheet and as the first section say."""
        measured = [line["rate"] for line in read_numbers(self.folder) if line["what"] == PRODUCT]
        nominal = peak_of(machine.device(self.device), "bf16")
        return {"nominal": nominal, "measured": 1e12 * measured[0] if measured else None}


def rounded(value: Any) -> Any:
    """Returns numbers with five digits; JSON has no word for one that is not finite."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


def read_numbers(folder: str | Path) -> list[dict[str, Any]]:
    file = Path(folder) / NUMBERS
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def repeated(step: Step, count: int, device: str) -> Step:
    """So many steps, for whose end alone it waits."""

    def several() -> None:
        for _ in range(count):
            step()

    return synchronized(several, device)


def seconds_of(step: Step, count: int, device: str) -> float:
    """Returns the seconds of one of `count` steps that follow each other without a wait."""
    repeated(step, WARM, device)()
    return timed(repeated(step, count, device), 1) / count


def quartiles(values: list[float]) -> list[float]:
    return quantiles(values, method="inclusive")
