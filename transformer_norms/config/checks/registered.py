"""The settings of registered classes: what a node's `type` names, and whether it can be built and
called as the program does it. A plugin's class is checked here like a built-in one."""

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import PydanticUserError
from torch import nn

from transformer_norms.config.tree import CHOSEN, TRACKING, owner_of
from transformer_norms.data import CORPORA, TOKENIZERS
from transformer_norms.errors import ConfigError, describe_error
from transformer_norms.kinds import Values
from transformer_norms.model.architecture import PER_BLOCK
from transformer_norms.model.attention import ATTENTIONS
from transformer_norms.model.connections import CONNECTIONS
from transformer_norms.model.mlp import ACTIVATIONS, MLPS
from transformer_norms.model.position import POSITIONS, SCALINGS
from transformer_norms.names import Registry, unknown
from transformer_norms.norms import NORMS
from transformer_norms.norms.stated import check_formula, is_fault
from transformer_norms.training.averages import AVERAGES, WindowAverage
from transformer_norms.training.loss import LOSSES
from transformer_norms.training.optimizer import OPTIMIZERS
from transformer_norms.training.schedule import SCHEDULES
from transformer_norms.validation import check, parameters


@dataclass(frozen=True)
class Use:
    """The use of what a registry holds: the arguments that the builder supplies besides the node's
    own settings, by name or by position, the methods that are called later, each with its
    arguments, and the attributes that are read. `offered` arguments are supplied to a class that
    takes them. `base` is the class that it should extend."""

    registry: Registry
    supplied: tuple[str, ...] = ()
    methods: Mapping[str, str] = field(default_factory=dict)
    by_position: bool = False
    offered: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    base: type = object


USES = {
    "norm": Use(NORMS, ("width",), {"forward": "x"}, by_position=True, offered=("place",)),
    "position": Use(
        POSITIONS,
        ("width", "context", "head_dim", "bases", "fractions", "interleaved", "proportional"),
        {"forward": "x start", "angles": "start time", "rotation": "i", "bias": "i heads"},
    ),
    "scaling": Use(SCALINGS, ("powers", "base", "dims")),
    "attention": Use(
        ATTENTIONS,
        ("width", "heads", "head_dim", "context", "dropout", "scale", "cap"),
        {"forward": "q k v x"},
        offered=(*PER_BLOCK, "position_bias"),
    ),
    "mlp": Use(
        MLPS,
        ("width", "mlp_width", "bias", "mid", "up_scale", "gate_scale"),
        {"forward": "x angles cache"},
        offered=("up_norm", "gate_norm"),
        attributes=("gated",),
    ),
    "connection": Use(
        CONNECTIONS,
        methods={"read": "streams", "write": "streams u", "parts": "streams"},
        offered=("width", "index", "count", "l", "depth", "norm", "sub_layer", "activation"),
        attributes=("enter", "leave"),
    ),
    "data": Use(CORPORA, (), {"identity": "", "documents": ""}),
    "tokenizer": Use(TOKENIZERS, (), {"identity": "", "fit": "train separated say tell"}),
    "loss": Use(LOSSES, (), {"__call__": "logits targets"}),
    "optimizer": Use(OPTIMIZERS, ("model",), by_position=True),
    "schedule": Use(SCHEDULES, ("step", "steps"), by_position=True),
    "average": Use(
        AVERAGES, ("model",), {"share": "step", "update": "step skip"}, True, base=WindowAverage
    ),
    "tracking": Use(TRACKING),
}


def check_parts(
    nodes: Mapping[str, Any], typed: Collection[str], spelled: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the nodes of a config, where those that registered classes declare are checked.
    `typed` has the keys that the user typed. Raises ConfigError."""
    checked = dict(nodes)
    for name in (name for name in USES if name in nodes):
        checked[name] = check_registered(name, name, nodes[name], spelled)
    parts = [("placement", "connection"), ("trainer", "average")]
    parts += [("position", "scaling")] if checked["position"]["type"] == "rope" else []
    for name, key in parts:
        if (given := checked[name].get(key, "none")) not in ("none", {}):
            part = check_registered(f"{name}.{key}", key, given, spelled)
            checked[name] = {**checked[name], key: part}
    _check_formula("norm", checked["norm"], any(key.startswith("norm.") for key in typed))
    if (activation := checked["mlp"]["activation"]) not in ACTIVATIONS:
        raise ConfigError(f"mlp.activation: {unknown('activation', activation, ACTIVATIONS)}")
    return checked


def check_norm(key: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of a norm's file as its class takes it. Raises ConfigError."""
    norm = check_registered(key, "norm", content)
    _check_formula(key, norm)
    return norm


def _check_formula(key: str, norm: Mapping[str, Any], changed: bool = False) -> None:
    """Compares a norm's formula with what its class computes. A norm that was `changed` by typed
    values may compute something else."""
    try:
        if "formula" in norm:
            check_formula(norm["type"], norm["formula"], NORMS.maker(norm).keywords)
    except ValueError as error:
        if is_fault(error):
            raise
        if isinstance(error, ConfigError) or not changed:
            raise ConfigError(f"{key}.formula: {error}") from None


def check_registered(
    key: str, axis: str, values: Mapping[str, Any], spelled: Mapping[str, str] = {}
) -> dict[str, Any]:
    """Returns the node's values as the class that its `type` names takes them, and those that its
    file holds besides. Raises ConfigError."""
    use = USES[axis]
    name = values.get("type")
    if name is None:
        raise ConfigError(f"{key}.type is missing; there are {', '.join(sorted(use.registry))}")
    if not isinstance(name, str) or name not in use.registry:
        raise ConfigError(f"{key}.type: {unknown(use.registry.kind, name, sorted(use.registry))}")
    thing, file = use.registry[name], owner_of(CHOSEN.get(axis, Values))
    _check_use(f"{key}.type: {name}", thing, use)
    owners = [thing, *([file] if file else [])]
    own = {k: value for k, value in values.items() if k != "type"}
    supplied = (*use.supplied, *use.offered)
    try:
        checked = check(key, own, *owners, supplied=supplied, auto=True, spelled=spelled)
    except (NameError, SyntaxError, PydanticUserError) as error:
        line = describe_error(error)
        raise ConfigError(f"{key}.type: {name}: an annotation cannot be read: {line}") from None
    # The project's files state every setting, so a saved config without one has lost it. A plugin's
    # file may leave to its class what has a default there: no config and no identity has it then.
    if str(thing.__module__).startswith(f"{__package__.partition('.')[0]}."):
        stated = [one for one in parameters(thing) if one not in supplied]
        if missing := [setting for setting in stated if setting not in own]:
            raise ConfigError(f"{key}.{missing[0]} is missing; wanted are {', '.join(stated)}")
    return {"type": name, **checked}


def _check_use(key: str, thing: Any, use: Use) -> None:
    """Raises ConfigError if the builder cannot supply its arguments, or if a method that the
    program calls is missing or takes other arguments."""
    if not (use.base is object or inspect.isclass(thing) and issubclass(thing, use.base)):
        raise ConfigError(f"{key} is not a subclass of {use.base.__name__}")
    for name in (name for name in use.attributes if not hasattr(thing, name)):
        raise ConfigError(f"{key} has no attribute {name}")
    if "__call__" in use.methods and not inspect.isclass(thing):
        raise ConfigError(f"{key} is a function; a class is wanted, whose instances are called")
    supplied = [name for name in use.supplied if name != "gate_scale" or thing.gated]
    arguments = inspect.signature(thing).parameters.values()
    names = [one.name for one in arguments if one.kind is not one.KEYWORD_ONLY]
    if use.by_position and names[: len(supplied)] != supplied:
        raise ConfigError(f"{key}: its first arguments should be ({', '.join(supplied)})")
    names = [one.name for one in arguments]
    takes_rest = any(one.kind is one.VAR_KEYWORD for one in arguments)
    if missing := [name for name in supplied if name not in names and not takes_rest]:
        built = f"it is built with {', '.join(supplied)} (**rest takes those without a use)"
        raise ConfigError(f"{key} takes no argument {missing[0]}; {built}")
    if inspect.isclass(thing):  # of a function's result the methods are not known
        for method, names_in_call in use.methods.items():
            _check_method(key, thing, method, names_in_call.split())


def _check_method(key: str, kind: type, method: str, arguments: Sequence[str]) -> None:
    if method == "__call__" and issubclass(kind, nn.Module):
        method = "forward"
    call = f"{method}({', '.join(arguments)})"
    function = next((vars(base)[method] for base in kind.__mro__ if method in vars(base)), None)
    if function is None or function is nn.Module.forward:
        raise ConfigError(f"{key} has no method {call}")
    if inspect.isfunction(function):
        signature = inspect.signature(function)
        try:
            signature.bind(None, *arguments)
        except TypeError as error:
            names = ", ".join(signature.parameters)
            raise ConfigError(f"{key}: {method}({names}) is called as {call}: {error}") from None
