"""Adds to the site of `make site` what is not in docs/: README.md as its first page,
CONTRIBUTING.md, a page of docstrings, and the pictures that pages show.

A link that leads out of the guide leads to $REPOSITORY, the address of the project's files, such as
https://HOST/OWNER/transformer_norms/blob/main, or else to the files of this clone.
"""

import os
import re
from pathlib import Path

from mkdocs.structure.files import File

from transformer_norms import _HOMES

ROOT = Path(__file__).parents[1]
ADDRESS = os.environ.get("REPOSITORY", "").rstrip("/") or ROOT.as_uri()
MADE = {"index.md": ROOT / "README.md", "contributing.md": ROOT / "CONTRIBUTING.md"}
PICTURES = (".svg", ".png")
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s#]+)")
REASON = re.compile(r"(?<=^```bash) not run: .*$", re.MULTILINE)  # for the tests of the pages
BLOCK = """\
::: transformer_norms.{name}
    options:
      heading: transformer_norms.{typed}
"""
# The names that Python calls, besides those of the package itself.
CALLED = """
hf.conversion.from_hf hf.conversion.to_hf model.transformer.Transformer norms.rmsnorm.RMSNorm
config.tree.Config names.Registry
"""


def api() -> str:
    """The page of the docstrings, for mkdocstrings."""
    names = {f"{home}.{name}": name for name, home in _HOMES.items()}
    names |= {name: name for name in CALLED.split()}
    blocks = "\n\n".join(BLOCK.format(name=name, typed=typed) for name, typed in names.items())
    return (
        f"# The names that Python calls\n\n[First steps](first_hour.md#from-python).\n\n{blocks}\n"
    )


def on_files(files, config):
    texts = {name: source.read_text() for name, source in MADE.items()} | {"api.md": api()}
    for name, text in texts.items():
        files.append(File.generated(config, name, content=text))
    for source in [*MADE.values(), *(ROOT / "docs").glob("*.md")]:
        for link in LINK.findall(source.read_text()):
            name = place(source, link)
            if name.endswith(PICTURES) and files.get_file_from_path(name) is None:
                content = (ROOT / name).read_bytes()
                files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown, page, config, files):
    name = page.file.src_uri
    source = MADE.get(name, ROOT / "docs" / name)
    return LINK.sub(lambda found: place(source, found[1]), REASON.sub("", markdown))


def place(source: Path, link: str) -> str:
    """Where a link of a page leads on the site, whose pages are all in one folder."""
    target = (source.parent / link).resolve()
    for name, made in MADE.items():
        if target == made:
            return name
    inside = target.relative_to(ROOT)
    if inside.parts[0] == "docs" and inside.suffix in (".md", *PICTURES):
        return inside.name
    return inside.as_posix() if inside.suffix in PICTURES else f"{ADDRESS}/{inside.as_posix()}"
