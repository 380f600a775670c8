"""The clauses of a family's config: `read` makes facts of a config, `write` a config of facts.

A clause that cannot say a fact writes something near. Reading that config shows the difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformer_norms.hf.facts import Facts, share


class Clause:
    """A part of a family's config. This one says nothing, either way."""

    def read(self, config: Any) -> Facts:
        """The facts that the config states. ValueError if it states what no fact can say."""
        return {}

    def write(self, facts: Facts) -> dict[str, Any]:
        """The keys of their config that state the facts."""
        return {}


@dataclass(frozen=True)
class Same(Clause):
    """Their key has the value of our fact."""

    keys: Mapping[str, str]

    def read(self, config: Any) -> Facts:
        return {ours: getattr(config, theirs) for theirs, ours in self.keys.items()}

    def write(self, facts: Facts) -> dict[str, Any]:
        there = {theirs: facts.get(ours) for theirs, ours in self.keys.items()}
        return {key: value for key, value in there.items() if value is not None}


@dataclass(frozen=True)
class Always(Clause):
    """Facts that hold for the whole family."""

    facts: Facts

    def read(self, config: Any) -> Facts:
        return self.facts


@dataclass(frozen=True)
class Never(Clause):
    """These keys must be empty: what they switch on is not built here."""

    keys: Sequence[str]

    def read(self, config: Any) -> Facts:
        for key in self.keys:
            value = getattr(config, key, None)
            if value:
                raise ValueError(f"{key}={value} has no counterpart here")
        return {}


@dataclass(frozen=True)
class Choice(Clause):
    """A switch stands for facts. The first of them that hold are written."""

    key: str
    values: Mapping[bool, Facts]

    def read(self, config: Any) -> Facts:
        return self.values[bool(getattr(config, self.key))]

    def write(self, facts: Facts) -> dict[str, Any]:
        for value, wanted in self.values.items():
            if all(facts.get(key) == each for key, each in wanted.items()):
                return {self.key: value}
        return {}


@dataclass(frozen=True)
class Inner(Clause):
    """The width inside the mlp. Without a value, or a key, it is four times the model's width."""

    key: str = ""

    def read(self, config: Any) -> Facts:
        return {"model.mlp_width": getattr(config, self.key, None) or 4 * config.hidden_size}

    def write(self, facts: Facts) -> dict[str, Any]:
        return {self.key: facts["model.mlp_width"]} if self.key else {}


@dataclass(frozen=True)
class Equal(Clause):
    """Two keys must be the same: what lies between them is not built here."""

    key: str
    other: str

    def read(self, config: Any) -> Facts:
        here, there = getattr(config, self.key), getattr(config, self.other)
        if here != there:
            raise ValueError(
                f"{self.key}={here} has no counterpart here: it is not {self.other}={there}"
            )
        return {}


@dataclass(frozen=True)
class HeadDim(Clause):
    """A head's width. Most of their code reads it where a config has it."""

    def read(self, config: Any) -> Facts:
        usual = config.hidden_size // config.num_attention_heads
        return {"model.head_dim": getattr(config, "head_dim", None) or usual}

    def write(self, facts: Facts) -> dict[str, Any]:
        usual = facts["model.width"] // facts["model.heads"]
        head_dim = facts["model.head_dim"]
        return {} if head_dim == usual else {"head_dim": head_dim}


# Their name -> ours. The first name of a kind is the one that is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True)
class Activation(Clause):
    """The activation of an mlp of the kind `mlp`."""

    key: str
    mlp: str
    names: Mapping[str, str] = field(default_factory=lambda: ACTIVATIONS)

    def read(self, config: Any) -> Facts:
        name = getattr(config, self.key)
        if name not in self.names:
            known = ", ".join(self.names)
            raise ValueError(f"{self.key}={name} has no counterpart here; known are {known}")
        return {"mlp": (self.mlp, self.names[name])}

    def write(self, facts: Facts) -> dict[str, Any]:
        ours = facts["mlp"][1]
        return {self.key: next((name for name in self.names if self.names[name] == ours), "relu")}


@dataclass(frozen=True)
class Biases(Clause):
    """A flag gives its roles a bias. The roles in `always` have one."""

    flags: Mapping[str, str] = field(default_factory=dict)
    always: str = ""

    def read(self, config: Any) -> Facts:
        on = [roles for flag, roles in self.flags.items() if getattr(config, flag)]
        return {"architecture.bias": frozenset(" ".join([self.always, *on]).split())}

    def write(self, facts: Facts) -> dict[str, Any]:
        bias = facts["architecture.bias"]
        return {flag: bool(bias & set(roles.split())) for flag, roles in self.flags.items()}


@dataclass(frozen=True)
class Cap(Clause):
    """A cap, which is None where there is none."""

    key: str
    fact: str

    def read(self, config: Any) -> Facts:
        value = getattr(config, self.key)
        return {self.fact: "none" if value is None else float(value)}

    def write(self, facts: Facts) -> dict[str, Any]:
        cap = facts[self.fact]
        return {self.key: None if cap == "none" else cap}


@dataclass(frozen=True)
class QueryScalar(Clause):
    """q k^T / sqrt(query_pre_attn_scalar), a whole number      Gemma"""

    def read(self, config: Any) -> Facts:
        return {"architecture.attention_scale": config.query_pre_attn_scalar**-0.5}

    def write(self, facts: Facts) -> dict[str, Any]:
        scale = facts["architecture.attention_scale"]
        number = isinstance(scale, float) and 0 < scale <= 1
        return {"query_pre_attn_scalar": round(scale**-2) if number else 1}


@dataclass(frozen=True)
class RootWidth(Clause):
    """The embedding times sqrt(width)      Gemma"""

    def read(self, config: Any) -> Facts:
        return {"architecture.embed_scale": config.hidden_size**0.5}


# --------------------------------------------------------------------- rotation and windows

BASE, FRACTION = "architecture.rope_base", "architecture.rope_fraction"
SLIDING, FULL = "sliding_attention", "full_attention"


def base_of(parameters: Mapping[str, Any]) -> float:
    """The base. ValueError if the angles are no plain powers of it."""
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
    """A window as long as the context is no window.

    It is written as None, or as the context where the family's default layers want a `number`. If
    another clause writes the key, `written` is false.
    """

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
