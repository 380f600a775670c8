"""The errors that a user meets as one line."""


class ConfigError(ValueError):
    """What was typed cannot be run: names the key, the value, what is allowed, the nearest name."""


class Busy(RuntimeError):
    """Another process holds this run; the same command later is the way on."""
