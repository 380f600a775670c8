"""Writes python_text.jsonl, a text of Python sources that no study reads twice: each source file of
seven packages, of the versions in constraints.txt, is a document.

    python -m pip install --no-deps --no-compile --target python_text \\
        $(grep -E "^(matplotlib|mypy|networkx|numpy|pandas|scipy|sympy)==" constraints.txt)
    python experiments/python_text.py python_text

Copies of a file and empty files are left out. The last line says the sizes and the SHA-256.
"""

import hashlib
import json
import sys
from pathlib import Path


def main(folder: str = "python_text") -> None:
    files = sorted(Path(folder).rglob("*.py"), key=lambda file: file.relative_to(folder).as_posix())
    texts = dict.fromkeys(filter(None, (file.read_text("utf-8") for file in files)))
    if not texts:
        print(
            f"{folder}: there is no Python source; name the folder of pip's --target",
            file=sys.stderr,
        )
        sys.exit(2)
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    Path("python_text.jsonl").write_text(lines)
    size, digest = sum(map(len, texts)), hashlib.sha256(lines.encode()).hexdigest()
    print(f"{len(texts):,} documents, {size:,} characters, SHA-256 {digest}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
