"""Run as a script, by a fresh interpreter: the docstrings of the C modules, as a JSON list.

Imports nothing of ours. A docstring that many objects share stands in the first document only, so
that no text is on both sides of a split.
"""

import importlib
import inspect
import json
import os
import sys
import sysconfig

# These touch a terminal, a display or a library that may not be there.
LEFT_OUT = {
    "readline",
    "_tkinter",
    "_curses",
    "_curses_panel",
    "_dbm",
    "_gdbm",
    "nis",
    "antigravity",
}


def names() -> list[str]:
    """Built-in and extension modules of the standard library, sorted, those for tests left out."""
    found = set(sys.builtin_module_names)
    folder = sysconfig.get_config_var("DESTSHARED")
    if folder and os.path.isdir(folder):
        found |= {
            file.split(".")[0] for file in os.listdir(folder) if file.endswith((".so", ".pyd"))
        }
    library = found & set(sys.stdlib_module_names)
    tests = {name for name in library if name.startswith(("_test", "xx", "_xx", "_ctypes_test"))}
    return sorted(library - tests - LEFT_OUT)


def docstrings(module: object) -> list[str]:
    """Of the module, its functions and classes, and their members, by name."""
    found = [module.__doc__]
    for name, value in sorted(vars(module).items()):
        if inspect.isbuiltin(value):
            found.append(_titled(name, value))
        elif inspect.isclass(value) and not inspect.isfunction(getattr(value, "__init__", None)):
            found.append(_titled(name, value))
            members = sorted(vars(value).items())
            found += [_titled(f"{name}.{key}", member) for key, member in members if _in_c(member)]
    return [doc for doc in found if doc]


def _in_c(member: object) -> bool:
    return inspect.isbuiltin(member) or inspect.ismethoddescriptor(member)


def _titled(name: str, value: object) -> str:
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
