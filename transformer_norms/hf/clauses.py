"""What a family's config says, a clause at a time: `read` makes facts of it, `write` makes it of
facts. A clause that cannot say a fact writes something near: reading that shows the difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformer_norms.hf.facts import Facts


class Clause:
    """Says nothing, either way."""

    def read(self, config: Any) -> Facts:
        """The facts; ValueError where the config has something that no fact can say."""
        return {}

    def write(self, facts: Facts) -> dict[str, Any]:
        """The keys of theirs."""
        return {}


@dataclass(frozen=True)
class Same(Clause):
    """Their key -> our fact, the same value."""

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
    """Their keys that must be empty: what they switch on is not built here."""

    keys: Sequence[str]

    def read(self, config: Any) -> Facts:
        for key in self.keys:
            value = getattr(config, key, None)
            if value:
                raise ValueError(f"{key}={value} has no counterpart here")
        return {}


@dataclass(frozen=True)
class Choice(Clause):
    """A switch of theirs and the facts that it stands for; the first that hold are written."""

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
    """The width inside the mlp, where none, or no key for it, is four times the model's."""

    key: str = ""

    def read(self, config: Any) -> Facts:
        return {"model.mlp_width": getattr(config, self.key, None) or 4 * config.hidden_size}

    def write(self, facts: Facts) -> dict[str, Any]:
        return {self.key: facts["model.mlp_width"]} if self.key else {}


@dataclass(frozen=True)
class Equal(Clause):
    """Two keys of theirs that must be the same: what lies between them is not built here."""

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
    """A head's width, which most of their code reads where a config has it."""

    def read(self, config: Any) -> Facts:
        usual = config.hidden_size // config.num_attention_heads
        return {"model.head_dim": getattr(config, "head_dim", None) or usual}

    def write(self, facts: Facts) -> dict[str, Any]:
        usual = facts["model.width"] // facts["model.heads"]
        head_dim = facts["model.head_dim"]
        return {} if head_dim == usual else {"head_dim": head_dim}


# Theirs -> ours; the first of a kind is what is written.
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
    """Flags of theirs -> the roles that have a bias by them; `always` have one."""

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
    """A cap of theirs that is None where there is none."""

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
