"""The blocks of README.md and docs/, and their commands made small enough for a test.

As a program it is `train.py` with small settings: python guide.py train ARGUMENTS...
"""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
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
    typed = {text.partition("=")[0]: text.partition("=")[2] for text in overrides if "=" in text}
    small = {} if {"continue_from", "config"} & set(typed) else dict(SMALL)
    if "data" in typed:
        small.pop("data.documents")
    if typed.get("model", "")[:1].isdigit():
        small["model"] = typed["model"] = "tiny"
    if "trainer.steps" in typed:
        small["trainer.steps"] = str(max(2, int(typed["trainer.steps"]) // LESS))
    kept = [text for text in overrides if text.partition("=")[0] not in ("trainer.steps", "model")]
    if "model" in typed:
        small["model"] = typed["model"]
    always = ("trainer.steps", "model")
    return kept + [f"{k}={v}" for k, v in small.items() if k in always or k not in typed]


def main(arguments: list[str]) -> int:
    from transformer_norms.cli import main as train

    return train(shrink(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
