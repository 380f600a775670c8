"""Rotary positions and windows in their configs: one base for all blocks, or one for each kind."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformer_norms.hf.clauses import Clause
from transformer_norms.hf.facts import Facts, share

BASE, FRACTION = "architecture.rope_base", "architecture.rope_fraction"
SLIDING, FULL = "sliding_attention", "full_attention"


def base_of(parameters: Mapping[str, Any]) -> float:
    """ValueError for a rotation whose angles are no plain powers of the base."""
    kind = parameters.get("rope_type", "default")
    if kind != "default":
        raise ValueError(f"rope_type={kind} has no counterpart here; known is default")
    return float(parameters["rope_theta"])


@dataclass(frozen=True)
class Rotary(Clause):
    """One base for all blocks. `partial` families turn a share of each head."""

    partial: bool = False

    def read(self, config: Any) -> Facts:
        parameters = config.rope_parameters
        facts: Facts = {BASE: [base_of(parameters)] * config.num_hidden_layers}
        if self.partial:
            head_dim = getattr(config, "head_dim", None)
            head_dim = head_dim or config.hidden_size // config.num_attention_heads
            given = parameters.get("partial_rotary_factor", 1.0)
            turned = int(head_dim * given)
            if turned % 2 or not 2 <= turned <= head_dim:
                raise ValueError(
                    f"partial_rotary_factor={given} turns {turned} of {head_dim} dimensions, which "
                    "has no counterpart here: they turn in pairs"
                )
            facts[FRACTION] = turned / head_dim
        return facts

    def write(self, facts: Facts) -> dict[str, Any]:
        parameters = {"rope_type": "default", "rope_theta": max(facts.get(BASE, [0])) or 1e4}
        if self.partial:
            head_dim = facts["model.head_dim"]
            turned = round(facts.get(FRACTION, 1) * head_dim)
            parameters["partial_rotary_factor"] = share(turned, head_dim)
        return {"rope_parameters": parameters}


@dataclass(frozen=True)
class RotaryDimensions(Clause):
    """The first `rotary_dim` dimensions of each head, by the base 10000      GPT-J"""

    def read(self, config: Any) -> Facts:
        head_dim = config.hidden_size // config.num_attention_heads
        turned = config.rotary_dim
        if not turned or turned % 2 or turned > head_dim:
            raise ValueError(f"rotary_dim={turned} has no counterpart here: heads have {head_dim}")
        return {BASE: [1e4] * config.num_hidden_layers, FRACTION: turned / head_dim}

    def write(self, facts: Facts) -> dict[str, Any]:
        return {"rotary_dim": round(facts.get(FRACTION, 1) * facts["model.head_dim"])}


@dataclass(frozen=True)
class BasePerKind(Clause):
    """One base where attention is full, another where it slides      Gemma 3"""

    def read(self, config: Any) -> Facts:
        bases = {kind: base_of(config.rope_parameters[kind]) for kind in set(config.layer_types)}
        return {BASE: [bases[kind] for kind in config.layer_types]}

    def write(self, facts: Facts) -> dict[str, Any]:
        bases = facts.get(BASE, [0])
        bases = [base or 1e4 for base in bases]
        here = {SLIDING: min(bases), FULL: max(bases)}
        return {
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": base} for kind, base in here.items()
            },
            "layer_types": [FULL if base == here[FULL] else SLIDING for base in bases],
        }


@dataclass(frozen=True)
class RotatedWhereSliding(Clause):
    """Where a window is set, only the blocks that it is for are turned      EXAONE 4"""

    def read(self, config: Any) -> Facts:
        base, kinds = base_of(config.rope_parameters), config.layer_types
        everywhere = config.sliding_window is None
        return {BASE: [base if everywhere or kind == SLIDING else 0.0 for kind in kinds]}

    def write(self, facts: Facts) -> dict[str, Any]:
        bases = facts.get(BASE, [0])
        some = not all(bases)
        return {
            "rope_parameters": {"rope_type": "default", "rope_theta": max(bases) or 1e4},
            "layer_types": [SLIDING if base and some else FULL for base in bases],
            "sliding_window": facts["model.context"] if some else None,
        }


@dataclass(frozen=True)
class NoWindow(Clause):
    """A window that is as long as the context is none. It is written as none, or, where the
    family's default layers want a number, as the context (`number`); `written` by no clause but
    this one unless false."""

    number: bool = False
    written: bool = True

    def read(self, config: Any) -> Facts:
        window, context = config.sliding_window, config.max_position_embeddings
        kinds = getattr(config, "layer_types", None) or [SLIDING]
        strange = sorted(set(kinds) - {SLIDING, FULL})
        if strange:
            raise ValueError(f"layer_types: {strange[0]} has no counterpart here")
        if window is not None and window < context and SLIDING in kinds:
            raise ValueError(
                f"sliding_window={window} has no counterpart here: it is below the context of "
                f"{context} (max_position_embeddings)"
            )
        return {}

    def write(self, facts: Facts) -> dict[str, Any]:
        if not self.written:
            return {}
        return {"sliding_window": facts["model.context"] if self.number else None}
