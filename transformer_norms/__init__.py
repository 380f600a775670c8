"""A Transformer whose block is assembled from config choices, to compare norms and placements.

Block and RMSNorm are modules. `compose` makes a config, and `build_model` its model. `train` writes
a run; `load`, `sample` and `generate` read it. `runs` lists runs, and `compare` reports them. For a
training loop of your own: prepare_tokens, build_batches, build_optimizers, build_schedulers.
"""

TYPE_CHECKING = False  # of typing, whose import takes longer than all of this
if TYPE_CHECKING:
    from typing import Any

    from transformer_norms.commands.sampling import generate as generate
    from transformer_norms.commands.sampling import sample as sample
    from transformer_norms.config.building import build_batches as build_batches
    from transformer_norms.config.building import build_model as build_model
    from transformer_norms.config.building import build_optimizers as build_optimizers
    from transformer_norms.config.building import build_schedulers as build_schedulers
    from transformer_norms.config.compose import compose as compose
    from transformer_norms.config.lone_block import Block as Block
    from transformer_norms.errors import ConfigError as ConfigError
    from transformer_norms.norms.rmsnorm import RMSNorm as RMSNorm
    from transformer_norms.report.page.notebook import compare as compare
    from transformer_norms.run.loading import load as load
    from transformer_norms.run.plan import prepare_tokens as prepare_tokens
    from transformer_norms.run.reader import runs as runs
    from transformer_norms.run.run import train as train

__version__ = "0.1.0"
_HOMES = {
    "Block": "config.lone_block",
    "ConfigError": "errors",
    "RMSNorm": "norms.rmsnorm",
    "build_batches": "config.building",
    "build_model": "config.building",
    "build_optimizers": "config.building",
    "build_schedulers": "config.building",
    "compare": "report.page.notebook",
    "compose": "config.compose",
    "generate": "commands.sampling",
    "load": "run.loading",
    "prepare_tokens": "run.plan",
    "runs": "run.reader",
    "sample": "commands.sampling",
    "train": "run.run",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> "Any":
    """Each name is imported when it is first used: a wrong config is answered without torch."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'transformer_norms' has no attribute '{name}'")
    return getattr(importlib.import_module(f"transformer_norms.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
