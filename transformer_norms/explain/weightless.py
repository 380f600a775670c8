"""The model of a config without its weights, so that the largest is explained on a laptop."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from transformer_norms.config.building import build_model
from transformer_norms.model.transformer import Transformer


class NoWeights(TorchFunctionMode):
    """Inside it, what is drawn or filled later (`empty`, `randn`) has a shape and no memory, while
    what starts at a number (`ones`, `full`) has that number: a gain, a coefficient.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keys = dict(kwargs or {})
        if func in (torch.empty, torch.randn):
            keys.pop("generator", None)
            return torch.empty(*args, **{**keys, "device": "meta"})
        return func(*args, **keys)


def build_weightless(config: Mapping[str, Any], vocab_size: int) -> Transformer:
    """`build_model`, module for module, its drawn weights on the meta device."""
    with NoWeights():
        return build_model(config, vocab_size)
