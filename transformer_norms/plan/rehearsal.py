"""A training step on tensors that have shapes and no memory: the real code runs, nothing is
computed, and every byte that it would allocate is counted.

So a model of any size, norm, placement and activation checkpointing is counted in seconds.
"""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from transformer_norms.config.building import build_uninitialized
from transformer_norms.config.tree import Config
from transformer_norms.model.attention import Softmax
from transformer_norms.model.attentions.kernels import Pattern
from transformer_norms.training.flops import training_flops
from transformer_norms.training.graphs.recomputation import recompute
from transformer_norms.training.loss import LOSSES, ModelLoss
from transformer_norms.training.optimizer import OPTIMIZERS
from transformer_norms.training.parameter_groups import groups
from transformer_norms.training.probes import Probe

# What memory is taken for. `work` is what the optimizer's step holds for a moment.
PARTS = ("weights", "gradients", "moments", "average", "activations", "logits", "work")
Bytes = Counter[str]  # by part


class MemoryCount(TorchDispatchMode):
    """Counts the bytes of all storages that are alive, by part, and keeps the fullest moment.

    A storage belongs to the part that is `open` when an operator allocates it, and to the logits if
    its last axis is the vocabulary.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size, self.open = vocab_size, "activations"
        self.parts: dict[int, str] = {}  # of each storage, by its address
        self.now: Bytes = Counter()
        self.fullest: Bytes = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                logits = tensor.ndim == 2 and tensor.shape[1] == self.vocab_size
                self.enter(tensor, "logits" if logits else self.open)
        return out

    def enter(self, tensor: Tensor, part: str) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self.parts:
            return
        self.parts[storage._cdata] = part
        self.now[part] += storage.nbytes()
        weakref.finalize(storage, self._leave, storage._cdata, storage.nbytes())
        if self.now.total() > self.fullest.total():
            self.fullest = self.now.copy()

    def move(self, tensor: Tensor, part: str) -> None:
        """Counts a storage that is known to another part."""
        storage = tensor.untyped_storage()
        self.now[self.parts[storage._cdata]] -= storage.nbytes()
        self.now[part] += storage.nbytes()
        self.parts[storage._cdata] = part

    def restart(self) -> None:
        """Forgets the fullest moment so far."""
        self.fullest = self.now.copy()

    def _leave(self, address: int, size: int) -> None:
        self.now[self.parts.pop(address)] -= size


class Stage:
    """A config's model without memory, on which steps are rehearsed."""

    def __init__(self, config: Config, vocab_size: int) -> None:
        self.config, self.mode = config, FakeTensorMode()
        double = config.trainer.precision == "fp64"
        with self.mode, default_dtype(torch.float64 if double else torch.float32):
            # A model without memory can be built in float64, and not be converted to it.
            single = replace(config, trainer=replace(config.trainer, precision="fp32"))
            self.model = build_uninitialized(single if double else config, vocab_size)
            if config.trainer.device == "cuda":
                _fuse_caps(self.model)
            if config.trainer.activation_checkpointing:
                self.model.through = recompute
            criterion, precision = LOSSES.maker(config.loss)(), config.trainer.precision
            # The operators of a CPU allocate what those of a GPU allocate, and need no GPU.
            self.loss = ModelLoss(self.model, criterion, device="cpu", precision=precision)
        self.parameters = list(self.model.parameters())

    def numbers(self) -> dict[str, int]:
        """Returns how many parameters there are, by group of the optimizer."""
        by_group = groups(self.model).items()
        return {name: sum(p.numel() for _, p in members) for name, members in by_group}

    def flops_per_token(self) -> tuple[float, float]:
        """Returns the FLOPs of the forward and the backward pass, and those that are computed once
        more in the backward pass: of all blocks, which is all but the head."""
        with self.mode:
            flops = training_flops(self.loss.sum, self._tokens(1)) / self.config.model.context
        again = flops / 3 - 2 * self.model.width * self.model.vocab_size
        return flops, again if self.config.trainer.activation_checkpointing else 0.0

    @property
    def weights(self) -> int:
        """The bytes of all weights."""
        return sum(p.numel() * p.element_size() for p in self.parameters)

    def rehearse(self, sequences: int, pieces: int = 1) -> Bytes:
        """Returns what a device has in memory at the fullest moment of the forward and the backward
        pass of one micro-batch. The pieces of the logits are smaller by the number `pieces`."""
        self.loss.side_by_side = pieces
        with self._counted() as ledger:
            hooks = [
                p.register_post_accumulate_grad_hook(lambda p: ledger.move(p.grad, "gradients"))
                for p in self.parameters
            ]
            self.loss.backward(self._tokens(sequences), 1)
            for hook in hooks:
                hook.remove()
        return ledger.fullest

    @cached_property
    def update(self) -> Bytes:
        """The fullest moment of the second update, since the first allocates moments. It is a
        measured one where probes are on: they keep the weights before it."""
        optimizers = OPTIMIZERS.maker(self.config.optimizer)(self.model)
        optimizers = [optimizers] if isinstance(optimizers, Optimizer) else optimizers
        with self._counted() as ledger:
            for parameter in self.parameters:
                parameter.grad = torch.empty_like(parameter)
                ledger.move(parameter.grad, "gradients")
            ledger.open = "work"
            for _ in range(2):
                ledger.restart()
                self._step(optimizers)
                for tensor in tree_leaves([list(o.state.values()) for o in optimizers]):
                    if isinstance(tensor, Tensor):
                        ledger.move(tensor, "moments")
        return ledger.fullest

    def _step(self, optimizers: Iterable[Optimizer]) -> None:
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        nn.utils.clip_grads_with_norm_(self.parameters, 1.0, norm)
        with Probe(self.model, self.config.trainer.probe_every > 0).update():
            for optimizer in optimizers:
                optimizer.step()
            self.model.constrain(self.model)

    @contextmanager
    def _counted(self) -> Iterator[MemoryCount]:
        with self.mode, MemoryCount(self.model.vocab_size) as ledger:
            for tensor in (*self.parameters, *self.model.buffers()):
                ledger.enter(tensor, "weights")
            yield ledger
        for parameter in self.parameters:
            parameter.grad = None

    def _tokens(self, sequences: int) -> Tensor:
        return torch.zeros(sequences, self.config.model.context + 1, dtype=torch.long)


def _fuse_caps(model: nn.Module) -> None:
    """Leaves out the cap, the pattern and the bias of attention where a GPU computes them in one
    kernel, which allocates what the kernel without them does."""
    for module in model.modules():
        if isinstance(module, Softmax) and module.causal and not module.dropout:
            module.cap, module.pattern = None, Pattern()


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
