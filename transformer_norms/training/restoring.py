"""The schema of the state and of the tensors from which a trainer can be restored.

A checkpoint whose files verify holds what somebody sealed. So names, shapes, types and ranges are
compared with what this model and its optimizers want before any number is restored. What does not
fit raises ValueError, one line, and changes nothing.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cache
from math import prod
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from safetensors import TensorSpec
from torch import Tensor, nn

from transformer_norms.kinds import Measured, Whole
from transformer_norms.training.divergence import PATIENCE, WINDOW
from transformer_norms.training.tensors import (
    OpenFile,
    Optimizers,
    is_finite_tensor,
    stored_tensors,
)

NotNegative = Annotated[Measured, Field(ge=0)]
_CLOSED = ConfigDict(extra="forbid", strict=True)
_NAMED = 80  # characters of a name in a message


# ------------------------------------------------------------------------------------------- state


@dataclass(frozen=True, config=_CLOSED, kw_only=True)
class DivergenceState:
    """The state of the rule of divergence."""

    initial: Measured | None
    above: Annotated[int, Field(ge=0, le=PATIENCE)]
    spikes: Whole
    recent: Annotated[list[Measured], Field(max_length=WINDOW)]


@dataclass(frozen=True, config=_CLOSED, kw_only=True)
class TrainerState:
    """state.json: what the next step depends on beside tensors. Nothing is drawn from a generator
    whose state would have to be kept: what is drawn depends on the seed and the step alone."""

    step: Whole
    tokens: Whole
    seconds: NotNegative
    evaluation_seconds: NotNegative
    losses: list[Measured]
    clips: list[Annotated[Measured, Field(gt=0, lt=1)]] = field(default_factory=list)
    grad_norm: NotNegative
    probed: dict[Annotated[str, Field(pattern="^probe/")], Measured | None] = field(
        default_factory=dict
    )
    chain: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
    best: Measured | None
    final: Measured | None
    divergence: DivergenceState
    # Parameters of which an optimizer keeps nothing, as no gradient came to them.
    untouched: list[str]
    written: Whole | None = None  # the step of the last row of the record, put in by the record

    def __post_init__(self) -> None:
        # A step that was judged and not made has a loss in the window.
        window = len(self.divergence.recent), self.divergence.spikes
        if (self.written or 0) > self.step or len(self.losses) > self.step:
            raise ValueError(f"it has more rows or losses than step {self.step} can have")
        if max(window) > self.step + 1:
            raise ValueError(f"its window of losses is longer than step {self.step} can have")


def read_state(state: Mapping[str, Any]) -> TrainerState:
    """Returns a saved state. Raises ValueError that names the key."""
    try:
        read: TrainerState = _adapter().validate_json(json.dumps(state))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(_short(part) for part in first["loc"])
        text = " ".join(first["msg"].removeprefix("Value error, ").split())
        raise ValueError(f"{where}: {text.lower()}" if where else text) from None
    return read


@cache
def _adapter() -> Any:
    return TypeAdapter(TrainerState)


def _short(name: object) -> str:
    return ascii(name)[1:-1][:_NAMED] if isinstance(name, str) else str(name)


# ----------------------------------------------------------------------------------------- tensors


class Stored(NamedTuple):
    """The type of a stored tensor, as safetensors names it, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


Tensors = Mapping[str, Stored]


def size_of(tensors: Tensors) -> int:
    """Returns the bytes of stored tensors. The first digits in the name of a type are its bits."""
    bits = {t.dtype: int((re.findall(r"[0-9]+", t.dtype) or ["8"])[0]) for t in tensors.values()}
    return sum(prod(t.shape) * bits[t.dtype] // 8 for t in tensors.values())


def stored_dtype(tensor: Tensor) -> str:
    """Returns safetensors' name of a tensor's type: F32, BF16, .."""
    name = str(tensor.dtype).removeprefix("torch.")
    return str(TensorSpec(dtype=name, shape=[], data_ptr=0, data_len=0).dtype)


def describe(tensors: Mapping[str, Tensor]) -> dict[str, Stored]:
    return {name: Stored(stored_dtype(t), tuple(t.shape)) for name, t in tensors.items()}


def model_tensors(model: nn.Module) -> dict[str, Stored]:
    """Returns what `load_weights` reads, by name."""
    return describe(stored_tensors(model))


def kept_tensors(model: nn.Module, optimizers: Optimizers) -> dict[str, dict[str, Stored]]:
    """Returns what the optimizers keep of each parameter from its first gradient on, by the
    parameter's name and then by the part's.

    Each optimizer makes a step with stand-ins, zeros of the same shapes. Where parameters are
    sharded, all ranks call it together.
    """
    names = {parameter: name for name, parameter in stored_tensors(model).items()}
    kept: dict[str, dict[str, Stored]] = {}
    for optimizer in optimizers:
        groups = [group["params"] for group in optimizer.param_groups]
        stand_ins = [_stand_ins(parameters) for parameters in groups]
        try:
            for group, alike in zip(optimizer.param_groups, stand_ins, strict=True):
                group["params"] = list(alike.values())
            optimizer.step()
        finally:
            for group, parameters in zip(optimizer.param_groups, groups, strict=True):
                group["params"] = parameters
            states = [
                {key: dict(optimizer.state.pop(zeros, {})) for key, zeros in alike.items()}
                for alike in stand_ins
            ]
        for parameters, state in zip(groups, states, strict=True):
            for parameter in parameters:
                kept[names[parameter]] = describe(state[_kind(parameter)])
    return kept


def _stand_ins(parameters: Sequence[Tensor]) -> dict[Any, nn.Parameter]:
    """Returns one parameter of zeros, with a gradient of zeros, for all of one kind."""
    alike = {}
    for parameter in parameters:
        if _kind(parameter) not in alike:
            zeros = nn.Parameter(torch.zeros_like(parameter, requires_grad=False))
            zeros.grad = torch.zeros_like(zeros)
            alike[_kind(parameter)] = zeros
    return alike


def _kind(parameter: Tensor) -> tuple[Any, ...]:
    return parameter.shape, parameter.dtype, parameter.device


def check_tensors(file: OpenFile, wanted: Tensors) -> None:
    """Raises ValueError unless the file holds these tensors, all finite, and no others. It reads
    one tensor at a time."""
    names = set(file.keys())
    for unmatched, text in ((wanted.keys() - names, "lacks"), (names - wanted.keys(), "has")):
        if unmatched:
            raise ValueError(f"it {text} {_list(unmatched)}, unlike this run's model and optimizer")
    for name, stored in wanted.items():
        part = file.get_slice(name)
        there = Stored(part.get_dtype(), tuple(part.get_shape()))
        if there != stored:
            raise ValueError(f"{name} is {there}, not {stored}")
    for name in wanted:
        if not is_finite_tensor(file.get_tensor(name)):
            raise ValueError(f"{name} holds NaN or an infinity")


def _list(names: Iterable[str]) -> str:
    first, *others = sorted(names)
    return _short(first) + (f" and {len(others)} more tensors" if others else "")


# ------------------------------------------------------------------------------------------- both


class Wanted(NamedTuple):
    """The most steps that a checkpoint of this run can have, the tensors of its model, and what its
    optimizers keep of each parameter."""

    steps: int
    model: Tensors
    kept: Mapping[str, Tensors]

    def sizes(self) -> dict[str, int]:
        """Returns the most bytes of tensors in each file of a checkpoint."""
        return {
            "model": size_of(self.model),
            "optimizer": sum(map(size_of, self.kept.values())),
        }

    def check_state(self, step: int, state: Mapping[str, Any]) -> TrainerState:
        read = read_state(state)
        if read.step != step:
            raise ValueError(f"step: is {read.step} in the checkpoint of step {step}")
        if unknown := set(read.untouched) - self.kept.keys():
            raise ValueError(f"untouched: names {_list(unknown)}, which no optimizer has")
        return read

    def check_optimizer(self, file: OpenFile, state: TrainerState) -> None:
        """Checks the tensors of the optimizers. Of a parameter they have all parts or none."""
        wanted = {
            f"{name}:{part}": stored
            for name, parts in self.kept.items()
            if name not in state.untouched
            for part, stored in parts.items()
        }
        check_tensors(file, wanted)
