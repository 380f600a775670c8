"""The blocks of README.md and docs/, and their commands made small enough for a test.

As a program it is `train.py` with small settings: python guide.py train ARGUMENTS...
"""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)(?: not run: (.+?))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LESS = 50  # times fewer steps than the page has
SMALL = {"data": "stories", "data.documents": "150", "data.val_tokens": "2048", "tracking": "none"}
SMALL |= {"trainer.steps": "12", "trainer.eval_every": "6", "trainer.threads": "1"}


class Block(NamedTuple):
    language: str
    not_run: str  # why, or ""
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*groups) for groups in FENCE.findall(page.read_text())]


def commands(text: str) -> Iterator[list[str]]:
    """Yields the words of each command of a shell's text that is ours."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if "train.py" in words:
            yield ["train", *words[words.index("train.py") + 1 :]]
        elif words[:1] == ["transformer-norms"]:
            yield words[1:]


def shrink(overrides: list[str]) -> list[str]:
    """The overrides of a run or a sweep with a small model, little text and few steps."""
    typed = dict(text.split("=", 1) for text in overrides if "=" in text)
    less = {}
    if "trainer.steps" in typed:
        less["trainer.steps"] = str(max(2, int(typed["trainer.steps"]) // LESS))
    if typed.get("model", "")[:1].isdigit():
        less["model"] = "nano"
    if typed.get("tokenizer") == "bpe":
        less["tokenizer.vocab_size"] = "512"  # that of the option is too large for little text
    small = {key: value for key, value in SMALL.items() if key not in typed}
    if typed.keys() & {"continue_from", "config"}:
        small = {}
    if "data" in typed:
        small.pop("data.documents", None)
    if any(key.startswith("tracking.") for key in typed):
        small.pop("tracking", None)
    kept = [text for text in overrides if text.partition("=")[0] not in less]
    return kept + [f"{key}={value}" for key, value in (small | less).items()]


def main(arguments: list[str]) -> int:
    from transformer_norms.cli import main as train

    return train(shrink(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
