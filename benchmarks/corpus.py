"""How fast a large corpus is prepared: CPU seconds of encoding and of joining, by processes.

python benchmarks/corpus.py --megabytes 100 --processes 1,2 --vocab-size 16384
"""

import argparse
import os
import random
import tempfile
import time
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

from transformer_norms.data import CORPORA, TOKENIZERS, prepare
from transformer_norms.data.prepare import TokenizerChoice


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--vocab-size", type=int, default=16384)
    typed = parser.parse_args()
    choices = {"byte": TOKENIZERS["byte"](), "bpe": TOKENIZERS["bpe"](vocab_size=typed.vocab_size)}
    print(
        "| tokenizer | processes | MB/s, wall | MB/s a core | tokens/s a core | joined tokens/s |"
    )
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "corpus.parquet")
        write_corpus(file, typed.megabytes)
        for name, choice in choices.items():
            for processes in map(int, typed.processes.split(",")):
                os.environ["TRANSFORMER_NORMS_CACHE"] = f"{folder}/{name}-{processes}"
                print(f"| {name} | {processes} | {measure(file, choice, processes)} |", flush=True)


def write_corpus(file: Path, megabytes: int) -> None:
    """Pieces of pydocs, drawn again and again, as rows of a Parquet file."""
    import pyarrow
    from pyarrow import parquet

    generator = random.Random(0)
    documents = list(CORPORA["pydocs"]().documents())
    pieces = [text[at : at + 3000] for text in documents for at in range(0, len(text), 3000)]
    texts, size = [], 0
    while size < megabytes * 1e6:
        texts.append(f"{generator.random()} {generator.choice(pieces)}")
        size += len(texts[-1])
    parquet.write_table(pyarrow.table({"text": texts}), file, row_group_size=1000)


def measure(file: Path, choice: TokenizerChoice, processes: int) -> str:
    """Prepares the file. Returns the columns of the table behind the processes."""
    marks: dict[str, tuple[float, float]] = {}

    def tell(what: str, done: float, total: float) -> None:
        if what.startswith("data: writing"):
            marks.setdefault("joining", clocks())
        elif not what.startswith("data: encoding"):
            marks["encoding"] = clocks()

    corpus = CORPORA["parquet"](paths=(str(file),), val_paths=(), field="text")
    tokens = prepare(corpus, choice, "hash", 0.05, 0, lambda line: None, tell, processes)
    parts = [tokens.facts[part] for part in ("train", "val", "test")]
    size, count = (sum(part[key] for part in parts) for key in ("bytes", "tokens"))
    begun, encoded = marks["encoding"], marks["joining"]
    cpu, wall = encoded[0] - begun[0], encoded[1] - begun[1]
    joined = clocks()[0] - encoded[0]
    figures = size / 1e6 / wall, size / 1e6 / cpu
    return f"{figures[0]:.1f} | {figures[1]:.1f} | {count / cpu:,.0f} | {count / joined:,.0f}"


def clocks() -> tuple[float, float]:
    """CPU seconds of this process and of its children that have ended, and wall seconds."""
    used = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used), time.monotonic()


if __name__ == "__main__":
    main()
