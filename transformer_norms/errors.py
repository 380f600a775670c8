"""The errors that a user meets as one line, each with the exit code of the command that it ends."""


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


# What ends a run from inside: an error, or what a plugin raised to end the process.
ENDS = (Exception, SystemExit, KeyboardInterrupt)


def describe_error(error: BaseException) -> str:
    """The error's kind and message in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
