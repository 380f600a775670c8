"""Compiles the parts of a training step, and keeps their kernels for other runs."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch

from transformer_norms.data.token_cache import cache_folder
from transformer_norms.errors import StorageError, describe_error
from transformer_norms.progress import say
from transformer_norms.storage.files import make_folder
from transformer_norms.storage.locks import wait_for_lock
from transformer_norms.training.settings import TrainerSettings

Function = TypeVar("Function", bound=Callable[..., Any])
# FLOPs of a run: some 100 s on an H100 without compiling. `block` saves a third of them there, and
# takes some 35 s to compile. `whole` was not faster than `block`.
SHORT = 2e16
GRAPHS = 64  # of one function: a worker of a sweep may train models of many kinds
_SHOWN = 300  # letters of an error


def choose_mode(settings: TrainerSettings, parameters: int, context: int) -> str:
    """Returns what is compiled: `trainer.compile`, or where that is `auto` nothing, but on a CUDA
    GPU by the FLOPs of the run, or of its longest branch, counted as 6 for each parameter and
    token."""
    if settings.compile != "auto":
        return settings.compile
    steps = max(settings.horizons, default=settings.steps)
    flops = 6.0 * parameters * steps * settings.batch_size * context
    return "none" if settings.device != "cuda" or flops < SHORT else "block"


class Compilation:
    """Compiles functions of one run where `mode` is `block` or `whole`, and none of them otherwise.

    block: each block, blocks that are alike by one graph, and the head with the loss.
    whole: all from the tokens to the states that the head reads, and the head with the loss.
    """

    def __init__(self, mode: str = "none", sharded: bool = False) -> None:
        self.mode, self.sharded = mode, sharded
        self.parts: list[Compiled] = []
        self.captured = False  # whether a step is one CUDA graph

    @property
    def active(self) -> bool:
        return self.mode != "none"

    def __call__(self, function: Function, name: str, *modes: str) -> "Function | Compiled":
        """Returns the function, compiled in these modes. A line about it has its `name`."""
        if self.mode not in modes:
            return function
        # The collective operations of a sharded block lie between its graphs.
        self.parts.append(Compiled(function, name, fullgraph=not self.sharded))
        return self.parts[-1]

    @property
    def text(self) -> str:
        """Returns the mode, and the parts that could not be compiled, as the record has them."""
        faults = (f"{part.name} was not: {part.fault}" for part in self.parts if part.fault)
        captured = ["each step is one CUDA graph"] * self.captured
        return "; ".join([self.mode, *captured, *faults])


class Compiled:
    """A function that is compiled at its first call. If that fails, a line says so, and the
    function runs without it: a run becomes slower, and loses no step."""

    def __init__(self, function: Callable[..., Any], name: str, fullgraph: bool) -> None:
        from torch._dynamo import config, exc  # takes as long as torch

        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(kernels_folder()))
        config.recompile_limit = max(config.recompile_limit, GRAPHS)
        config.fail_on_recompile_limit_hit = True  # else it would run eagerly in silence
        self.function, self.name = function, name
        self.compiled = torch.compile(function, dynamic=False, fullgraph=fullgraph)
        self.failures = exc.TorchDynamoException, exc.FailOnRecompileLimitHit
        self.fault = ""

    def __call__(self, *given: Any) -> Any:
        if not self.fault:
            try:
                return self.compiled(*given)
            except self.failures as error:
                self.fault = describe_error(error)[:_SHOWN]
                say(f"trainer.compile: {self.name} is not compiled, and slower: {self.fault}")
        return self.function(*given)


def kernels_folder() -> Path:
    """Returns where compiled kernels are kept: in the project's cache, for all runs."""
    return cache_folder() / "kernels"


@contextmanager
def share_kernels(kind: Mapping[str, Any], device: str) -> Iterator[Callable[[], None]]:
    """Yields what to call after the first step. Until then other processes that train a model of
    this kind wait, and then load the same kernels."""
    folder = kernels_folder()
    make_folder(folder)
    text = json.dumps([kind, torch.__version__, device], sort_keys=True, default=str)
    made = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.kind"
    made.touch()
    with ExitStack() as held:

        def release() -> None:
            made.write_bytes(b"compiled")
            held.close()

        def announce() -> None:
            say("another run compiles a model of this kind; waiting for its kernels")

        if not made.stat().st_size:
            with suppress(StorageError):  # without locks, each run compiles
                held.enter_context(wait_for_lock(made, announce=announce))
            if made.stat().st_size:  # they were made while this process waited
                held.close()
        yield release
