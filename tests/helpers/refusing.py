"""A refusal is one line that can be printed."""

import pytest

from transformer_norms.errors import ConfigError, InputError


def refused(function, *arguments, **keys) -> str:
    """The one line with which it was refused."""
    with pytest.raises((ConfigError, InputError)) as caught:
        function(*arguments, **keys)
    line = str(caught.value)
    assert line.isprintable(), line
    return line
