"""A Transformer whose block is assembled from config choices, to compare norms and placements.

from transformer_norms import Block, compose, build_model, train, load, runs
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_norms.config.building import build_model as build_model
    from transformer_norms.config.compose import compose as compose
    from transformer_norms.config.lone_block import Block as Block
    from transformer_norms.errors import ConfigError as ConfigError
    from transformer_norms.run.loading import load as load
    from transformer_norms.run.reader import runs as runs
    from transformer_norms.run.run import train as train

__version__ = "0.1.0"
_HOMES = {
    "Block": "config.lone_block",
    "compose": "config.compose",
    "ConfigError": "errors",
    "build_model": "config.building",
    "train": "run.run",
    "load": "run.loading",
    "runs": "run.reader",
}
__all__ = ["Block", "ConfigError", "build_model", "compose", "load", "runs", "train"]


def __getattr__(name: str) -> Any:
    """Each name is imported when it is first used: a wrong config is answered without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'transformer_norms' has no attribute '{name}'")
    return getattr(importlib.import_module(f"transformer_norms.{_HOMES[name]}"), name)
