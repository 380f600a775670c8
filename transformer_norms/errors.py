"""The errors that a user meets as one line, each with the exit code of the command that it ends."""

import os
import re
from contextlib import suppress

_SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)
_PASSWORD = re.compile(r"://[^/@\s]*:([^/@\s]+)@")  # of an address, such as that of a proxy
BEGAN = "the summary.json of the run has this traceback"  # a note of an error in a begun run
_SHORTEST = 8  # letters: true, 1 and auto are not secrets under any name


class ConfigError(ValueError):
    """The typed configuration cannot be run.

    The message names the key, the value, what is allowed and the nearest name.
    """

    exit_code = 2


class InputError(ValueError):
    """A corpus, a tokenizer or a split cannot be used. The message says what to do instead."""

    exit_code = 2


class NoUsableCheckpoint(RuntimeError):
    """There are checkpoints and none verifies. Nothing is deleted, nothing starts from scratch."""

    exit_code = 3


class StorageError(OSError):
    """The disk refused. The message holds the path and the bytes that were needed and are free."""

    exit_code = 4


class Busy(RuntimeError):
    """Another process holds this run. The same command works later."""

    exit_code = 75


class LostRank(RuntimeError):
    """Another process of this run has ended. The same command goes on from the last checkpoint."""

    exit_code = 1


def missing_package(error: BaseException) -> ConfigError | None:
    """Returns what to type where an optional package is not installed: the extra that brings it, as
    the metadata of this package says. None for any other error."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        from importlib import metadata  # slow: signals are answered before

        needs: list[str] = []
        with suppress(metadata.PackageNotFoundError):  # a clone that is on the path
            needs += metadata.requires("transformer-norms") or ()
        lines = "\n".join(need.replace("-", "_") for need in needs)
        if extras := re.findall(rf"^{error.name}\b.*; extra == '(\w+)'", lines, re.MULTILINE):
            extra = min(extras, key=lambda extra: (extra == "all", extra))
            line = f"{error.name} is not installed; type pip install 'transformer-norms[{extra}]'"
            return ConfigError(line)
    return None


def describe_error(error: BaseException) -> str:
    """Returns the error in one line: its message where a command would print that alone, else its
    kind and its message."""
    error = missing_package(error) or error
    kind = "" if hasattr(error, "exit_code") else f"{type(error).__name__}: "
    return hide_secrets(" ".join(f"{kind}{error}".split()).removesuffix(":"))


def hide_secrets(text: str) -> str:
    """Masks what the environment holds under the name of a key, a token or a password.

    An error of a library may quote it, and a traceback is kept in files that people share.
    """
    for name, value in os.environ.items():
        for secret in [value] if _SECRET.search(name) else _PASSWORD.findall(value):
            if len(secret) >= _SHORTEST:
                text = text.replace(secret, "***")
    return text
