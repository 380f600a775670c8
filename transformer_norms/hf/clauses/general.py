"""The clauses of a family's config: `read` says what one types here for a config, `write` makes a
config of our facts.

A clause that cannot say a fact writes something near. Reading that config shows the difference.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformer_norms.config.chosen_files import option_content
from transformer_norms.hf.facts import Facts, branch_factor, first
from transformer_norms.names import options

Keys = dict[str, Any]  # of our config -> value


class Clause(NamedTuple):
    """A part of a family's config.

    `read` returns what a config of theirs states, and raises ValueError if no key of ours can say
    it. `write` returns the keys of their config that state the facts.
    """

    read: Callable[[Any], Keys] = lambda config: {}
    write: Callable[[Facts], dict[str, Any]] = lambda facts: {}


def unsaid(key: str, value: Any, why: str = "") -> ValueError:
    """The error for a value of their config that no key of ours can say."""
    return ValueError(f"{key}={value} has no counterpart here{why}")


def same(keys: Mapping[str, str]) -> Clause:
    """Their key has the value of ours."""

    def write(facts: Facts) -> dict[str, Any]:
        values = {theirs: first(facts.get(ours)) for theirs, ours in keys.items()}
        return {key: value for key, value in values.items() if value is not None}

    return Clause(lambda config: {keys[theirs]: getattr(config, theirs) for theirs in keys}, write)


def spelled(key: str, ours: str, read: Callable[[Any], Any], write: Callable[[Any], Any]) -> Clause:
    """Their key has another spelling of the value of ours."""
    return Clause(
        lambda config: {ours: read(getattr(config, key))},
        lambda facts: {key: write(first(facts[ours]))},
    )


def always(keys: Keys) -> Clause:
    """Keys that every model of the family has."""
    return Clause(lambda config: keys)


def never(*keys: str) -> Clause:
    """These keys must be empty: what they switch on is not built here."""

    def read(config: Any) -> Keys:
        for key in keys:
            if value := getattr(config, key, None):
                raise unsaid(key, value)
        return {}

    return Clause(read)


def equal(key: str, wanted: str) -> Clause:
    """Two keys must be the same: what lies between them is not built here."""

    def read(config: Any) -> Keys:
        here, there = getattr(config, key), getattr(config, wanted)
        if here != there:
            raise unsaid(key, here, f": it is not {wanted}={there}")
        return {}

    return Clause(read)


def choice(key: str, values: Mapping[bool, Keys]) -> Clause:
    """A switch chooses keys. The first value whose keys are the facts is written."""

    def write(facts: Facts) -> dict[str, Any]:
        for value, wanted in values.items():
            if all(first(facts.get(name)) == own for name, own in wanted.items()):
                return {key: value}
        return {}

    return Clause(lambda config: values[bool(getattr(config, key))], write)


# The width inside the mlp      GPT-2
INNER_WIDTH = Clause(
    lambda config: {"model.mlp_width": config.n_inner or 4 * config.hidden_size},
    lambda facts: {"n_inner": facts["model.mlp_width"]},
)


def head_dim_of(config: Any) -> int:
    """A head's width. Most of their code reads it where a config has it."""
    equal_share: int = config.hidden_size // config.num_attention_heads
    return getattr(config, "head_dim", None) or equal_share


def _write_head_dim(facts: Facts) -> dict[str, Any]:
    head_dim = first(facts["model.head_dim"])
    equal_share = facts["model.width"] // facts["model.heads"]
    return {} if head_dim == equal_share else {"head_dim": head_dim}


HEAD_DIM = Clause(lambda config: {"model.head_dim": head_dim_of(config)}, _write_head_dim)

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


def activation(key: str, mlp: str, names: Mapping[str, str] = ACTIVATIONS) -> Clause:
    """The activation of an mlp of the kind `mlp`."""

    def read(config: Any) -> Keys:
        name = getattr(config, key)
        if name not in names:
            raise unsaid(key, name, f"; known are {', '.join(names)}")
        content = {"type": mlp, "activation": names[name]}
        named = [own for own in options("mlp") if option_content("mlp", own) == content]
        usual = {"gated": "swiglu", "plain": "gelu"}[mlp]
        return {"mlp": named[0]} if named else {"mlp": usual, "mlp.activation": names[name]}

    def write(facts: Facts) -> dict[str, Any]:
        ours = facts["mlp"][1]
        return {key: next((name for name in names if names[name] == ours), "relu")}

    return Clause(read, write)


def biases(flags: Mapping[str, str] = {}, fixed: str = "") -> Clause:
    """A flag gives its roles a bias. The roles in `fixed` always have one."""

    def read(config: Any) -> Keys:
        on = [roles for flag, roles in flags.items() if getattr(config, flag)]
        return {"architecture.bias": frozenset(" ".join([fixed, *on]).split())}

    def write(facts: Facts) -> dict[str, Any]:
        bias = {*facts["architecture.bias"]}
        return {flag: bool(bias & {*roles.split()}) for flag, roles in flags.items()}

    return Clause(read, write)


def cap(key: str, ours: str) -> Clause:
    """A cap, which is None where there is none."""
    return spelled(
        key,
        ours,
        lambda value: "none" if value is None else float(value),
        lambda fact: None if fact == "none" else fact,
    )


# They divide the logits by what ours multiply with      Granite
LOGIT_DIVISOR = spelled(
    "logits_scaling",
    "architecture.logit_scale",
    lambda divisor: 1 / divisor,
    lambda factor: 1 / factor if isinstance(factor, float) and factor else 1.0,
)
# The branch of a pre-norm, multiplied by a number      Granite
RESIDUAL_MULTIPLIER = Clause(
    lambda config: (
        {"placement": "pre"}
        if config.residual_multiplier == 1
        else {"placement.equation": f"x + {float(config.residual_multiplier)} * f(norm(x))"}
    ),
    lambda facts: {"residual_multiplier": branch_factor(facts["placement"])},
)
# q k^T / sqrt(query_pre_attn_scalar), a whole number      Gemma
QUERY_SCALAR = spelled(
    "query_pre_attn_scalar",
    "architecture.attention_scale",
    lambda scalar: scalar**-0.5,
    lambda scale: round(scale**-2) if isinstance(scale, float) and 0 < scale <= 1 else 1,
)
# The embedding times sqrt(width)      Gemma
ROOT_WIDTH = always({"architecture.embed_scale": "sqrt(d)"})


# ALiBi knows no last position; released configs say how long the sequences of training were.
SEQUENCE = Clause(
    lambda config: {"model.context": getattr(config, "seq_length", 2048)},
    lambda facts: {"seq_length": facts["model.context"]},
)


def check_eps(config: Any, norm: str, where: str) -> None:
    """Raises ValueError if a config's eps is not that of the norm's file, which `where` has."""
    if config.rms_norm_eps != (eps := option_content("norm", norm)["eps"]):
        raise unsaid("rms_norm_eps", config.rms_norm_eps, f": {where} has {eps}")
