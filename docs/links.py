"""Names each dead link of the project's Markdown: to a file or to a heading that does not exist.

python docs/links.py      make check
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = (".", "docs", "configs", "benchmarks", "experiments/**", "tests")
PAGES = sorted(page for folder in FOLDERS for page in ROOT.glob(f"{folder}/*.md"))
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")


def heading_ids(page: Path) -> set[str]:
    """The ids that GitHub gives to the headings of a page, and `make site` as well."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def dead_links(page: Path) -> Iterator[str]:
    for target in LINK.findall(page.read_text()):
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (heading and heading not in heading_ids(file)):
            yield target


def main() -> int:
    dead = [f"{page.relative_to(ROOT)}: {link}" for page in PAGES for link in dead_links(page)]
    print("\n".join(dead) or f"{len(PAGES)} pages have no dead link")
    return int(bool(dead))


if __name__ == "__main__":
    sys.exit(main())
