"""Builds the parts of an attention that keys of `architecture` choose, without its norms: the
softmax with its scale, cap and pattern, a temperature, a gate on heads, terms of the values."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from transformer_norms.formula import Formula
from transformer_norms.model.architecture import PER_BLOCK, BlockChoices
from transformer_norms.model.attentions.heads import Temperature, ValueMix
from transformer_norms.model.attentions.softmax import ATTENTIONS
from transformer_norms.model.coefficient import Gate, coefficient, head_shapes
from transformer_norms.model.initialization import Embedding, biased
from transformer_norms.model.position import NoPosition
from transformer_norms.model.settings import ModelConfig
from transformer_norms.names import parameters
from transformer_norms.norms import Layer, nothing


def attention_options(
    config: ModelConfig, own: BlockChoices, position: NoPosition, vocab_size: int
) -> dict[str, Any]:
    """Returns arguments of an Attention, of the block with the numbers `own`."""
    how, floor = config.architecture, own.temperature_floor
    temperature = Temperature(floor, how.temperature_scale)
    return {
        "attend": _attend(config, own, position),
        "scale": _learned_scale(how.attention_scale, own),
        "temperature": temperature if floor else nothing,
        "attention_gate": _gate(how, own),
        "values": _value_mix(how, own, vocab_size) if own.source is None else nothing,
    }


def _attend(config: ModelConfig, own: BlockChoices, position: NoPosition) -> nn.Module:
    sizes, how = own.sizes, config.architecture
    scale, cap = how.attention_scale, how.attention_cap
    offered = {key: getattr(own, key) or None for key in PER_BLOCK}
    offered["position_bias"] = position.bias(own.i, sizes.heads)
    named = arguments_of(ATTENTIONS[config.attention.type])
    attend: nn.Module = ATTENTIONS.maker(config.attention)(
        scale=1.0 if isinstance(scale, Mapping) else float(Formula(scale)(own.values)),
        cap=None if cap == "none" else float(cap),
        width=sizes.width,
        heads=sizes.heads,
        head_dim=sizes.head_dim,
        context=sizes.context,
        dropout=sizes.dropout,
        **{key: offered[key] for key in named & offered.keys() if offered[key] is not None},
    )
    return attend


def arguments_of(kind: type) -> set[str]:
    """Returns the names of the arguments that a class or one of its bases states. An attention that
    has no use for a number of the block, or for a bias by distance, need not name it."""
    stated = [vars(base).get("__init__") for base in kind.__mro__]
    return {name for own in stated if inspect.isfunction(own) for name in parameters(own)}


def _learned_scale(scale: Any, own: BlockChoices) -> Layer:
    """The factor of q, where the scale of the logits is learned."""
    shapes = head_shapes(own.sizes.heads, own.sizes.head_dim)
    return coefficient(scale, shapes, own.values) if isinstance(scale, Mapping) else nothing


def _gate(how: Any, own: BlockChoices) -> Layer:
    each = {"elementwise": own.value_dim, "per_head": 1}.get(how.attention_gate)
    if each is None:
        return nothing
    return Gate(own.sizes.width, own.sizes.heads, each, "attention_gate" in biased(how.bias))


def _value_mix(how: Any, own: BlockChoices, vocab_size: int) -> Layer:
    """The terms of values next to W_v x: a share of the first block's, and rows of a table."""
    (heads, value_dim), parts = own.heads_at("v"), dict[str, Any]()
    if how.value_residual != "none":
        value, first = (
            coefficient(spec, head_shapes(heads, value_dim), own.values)
            for spec in (how.value_scale, how.value_residual)
        )
        parts = {"own": value, "first": first} if own.i else {"shares_kv": True}
    if factor := own.value_embedding:
        table = Embedding(vocab_size, heads * value_dim)
        parts |= {"value_embedding": table, "embedded": coefficient(factor, {}, own.values)}
        if how.value_gate != "none":
            parts["value_gate"] = Gate(how.value_gate, heads)
    return ValueMix(**parts) if parts else nothing
