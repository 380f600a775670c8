"""A script for a fresh interpreter: prints the docstrings of the C modules as a JSON list.

It imports nothing of this package. A docstring that many objects share is in the first document
only, so that no text is on both sides of a split.
"""

import importlib
import inspect
import json
import os
import sys
import sysconfig

# These need a terminal, a display or a library that may be absent.
LEFT_OUT = set("readline _tkinter _curses _curses_panel _dbm _gdbm nis antigravity".split())


def names() -> list[str]:
    """Built-in and extension modules of the standard library, sorted, without those for tests."""
    modules = set(sys.builtin_module_names)
    folder = sysconfig.get_config_var("DESTSHARED")
    if folder and os.path.isdir(folder):
        modules |= {
            file.split(".")[0] for file in os.listdir(folder) if file.endswith((".so", ".pyd"))
        }
    library = modules & set(sys.stdlib_module_names)
    tests = {name for name in library if name.startswith(("_test", "xx", "_xx", "_ctypes_test"))}
    return sorted(library - tests - LEFT_OUT)


def docstrings(module: object) -> list[str]:
    """The docstrings of a module, its functions and classes, and their members, by name."""
    docs = [module.__doc__]
    for name, value in sorted(vars(module).items()):
        if inspect.isbuiltin(value):
            docs.append(_add_title(name, value))
        elif inspect.isclass(value) and not inspect.isfunction(getattr(value, "__init__", None)):
            docs.append(_add_title(name, value))
            members = sorted(vars(value).items())
            docs += [
                _add_title(f"{name}.{key}", member) for key, member in members if _in_c(member)
            ]
    return [doc for doc in docs if doc]


def _in_c(member: object) -> bool:
    return inspect.isbuiltin(member) or inspect.ismethoddescriptor(member)


def _add_title(name: str, value: object) -> str:
    doc = getattr(value, "__doc__", None)
    return f"{name}\n{doc.strip()}" if isinstance(doc, str) and doc.strip() else ""


def main() -> None:
    seen: set[str] = set()
    documents = []
    for name in names():
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        parts = []
        for text in docstrings(module):
            doc = text.partition("\n")[2] or text
            if doc not in seen:
                seen.add(doc)
                parts.append(text)
        if parts:
            documents.append(f"{name}\n\n" + "\n\n".join(parts) + "\n")
    json.dump(documents, sys.stdout)


if __name__ == "__main__":
    main()
