"""A refusal is one line that can be printed."""

import pytest

from transformer_norms.errors import ConfigError


def refused(function, *arguments) -> str:
    """The one line with which it was refused."""
    with pytest.raises(ConfigError) as caught:
        function(*arguments)
    line = str(caught.value)
    assert line.isprintable(), line
    return line
