"""N-grams for packed runs whose records have none: ngrams.json holds them by the fingerprint of the
data and the number of tokens that a run reads."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_norms.config.compose import compose
from transformer_norms.config.overrides import as_typed
from transformer_norms.data import CORPORA, TOKENIZERS, prepare
from transformer_norms.data.ngrams import ngram_facts
from transformer_norms.progress import say
from transformer_norms.storage.reading import read_json

FILE = Path(__file__).parent / "ngrams.json"


def add_ngrams(folder: Path) -> None:
    """Puts the n-grams of ngrams.json into the summaries below `folder` that have none."""
    known = read_json(FILE)
    for run, fingerprint, read in _runs_without(folder):
        if found := known.get(fingerprint, {}).get(str(read)):
            summary = read_json(run / "summary.json")
            summary["data"] |= found
            (run / "summary.json").write_text(json.dumps(summary))


def write_ngrams(folder: Path, text: Path) -> None:
    """Counts the n-grams of the runs below `folder` on their data, the file `text`, and writes
    ngrams.json. ValueError where a run had other data."""
    counted: dict[str, dict[str, Any]] = {}
    for run, fingerprint, read in _runs_without(folder):
        if str(read) in counted.setdefault(fingerprint, {}):
            continue
        typed = [as_typed("config", str(run / "config.yaml")), as_typed("data.paths", str(text))]
        config = compose(typed)
        corpus, tokenizer = CORPORA.maker(config.data)(), TOKENIZERS.maker(config.tokenizer)()
        data = config.data
        shares = data.val_fraction, data.test_fraction
        tokens = prepare(corpus, tokenizer, data.split, *shares, say)
        if tokens.fingerprint != fingerprint:
            raise ValueError(f"{text}: is not the text of {run.name}")
        context, limit = config.model.context, data.val_tokens
        counted[fingerprint][str(read)] = ngram_facts(tokens, read, context, limit, say)
    FILE.write_text(json.dumps(counted, indent=1, sort_keys=True) + "\n")
    print(FILE, file=sys.stderr)


def _runs_without(folder: Path) -> Iterator[tuple[Path, str, int]]:
    """Yields each run without n-grams, the fingerprint of its data, and the tokens that it reads to
    its end, which a diverged run has not reached."""
    for file in sorted(folder.rglob("summary.json")):
        summary = read_json(file)
        if not summary["data"].get("ngrams"):
            read = summary["tokens"] // summary["step"] * summary["steps"]
            yield file.parent, summary["data"]["fingerprint"], read
