"""English and code that every Python carries."""

import json
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from transformer_norms.data.documents import CORPORA
from transformer_norms.errors import InputError

# Tests are mostly data; encodings and pydoc_data are tables (the topics are read apart).
LEFT_OUT = {"test", "tests", "idle_test", "__pycache__", "site-packages", "dist-packages"}
LEFT_OUT |= {"encodings", "pydoc_data"}
FEWEST_FILES = 100
SECONDS = 60


@CORPORA("pydocs")
class PyDocs:
    """The language reference's topics, the docstrings of C modules, the standard library's source.

    Each topic, module and file is a document. One build of Python always has the same text. Another
    version has another text, and so another fingerprint.
    """

    floor = None

    def identity(self) -> dict:
        return {
            "type": "pydocs",
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "build": [*platform.python_build(), platform.python_compiler(), sys.platform],
        }

    def documents(self) -> Iterator[str]:
        yield from topics()
        yield from module_docstrings()
        yield from sources(Path(sysconfig.get_paths()["stdlib"]))


def topics() -> list[str]:
    """The language reference, as help() shows it."""
    try:
        from pydoc_data.topics import topics as texts
    except ImportError:
        return []  # some distributions put it in a separate package
    return [texts[name] for name in sorted(texts)]


def module_docstrings() -> list[str]:
    """One document per C module; docstrings in Python source are read as source.

    A fresh interpreter reads them, in which nothing is patched and no site has run: the modules
    that are imported here must not change the text.
    """
    script = Path(__file__).with_name("c_modules.py")
    try:
        process = subprocess.run(
            [sys.executable, "-I", "-S", "-W", "ignore", str(script)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=SECONDS,
        )
        return json.loads(process.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        raise InputError(
            f"data=pydocs: the C modules of {sys.executable} cannot be read ({error}); "
            "use data=stories or data=text data.paths=FILE"
        ) from None


def sources(root: Path) -> Iterator[str]:
    """The source files of the standard library, sorted. A file that is not UTF-8 is left out."""
    files = [path for path in sorted(root.rglob("*.py")) if _belongs(path.relative_to(root))]
    if len(files) < FEWEST_FILES:
        raise InputError(
            f"data=pydocs: this Python carries no source in {root}; "
            "use data=stories or data=text data.paths=FILE"
        )
    for file in files:
        try:
            text = file.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            continue
        if text:
            yield text


def _belongs(path: Path) -> bool:
    # sitecustomize, _sysconfigdata and the like belong to the machine, not to the library.
    top = path.parts[0].removesuffix(".py")
    return top in sys.stdlib_module_names and not LEFT_OUT & set(path.parts)
