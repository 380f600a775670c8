"""Models in shards on several ranks, compared with the same models in one process."""

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import torch
import torch._dynamo  # forked ranks share what is imported here
import torch.distributed.fsdp
import torch.distributed.tensor
import torch.nn.functional as F
from rank_workers import batches

from transformer_norms.config.building import build_model, build_trainer
from transformer_norms.config.compose import compose
from transformer_norms.signals import Interrupted
from transformer_norms.training import loss as losses
from transformer_norms.training.parallel.sharding import sharder
from transformer_norms.training.tensors import sharded, whole

# Neither the width nor the vocabulary can be cut evenly in 4, and there are fewer heads than ranks.
SIZES = [
    "model=nano", "model.width=30", "model.heads=3", "model.depth=2", "model.context=12",
    "trainer.batch_size=8", "trainer.accumulation=8", "trainer.steps=9", "schedule.warmup=2",
    "trainer.threads=1", "trainer.probe_every=1", "parallel=fsdp",
]  # fmt: skip
VOCABULARY, STEPS = 61, 3
CANCELLING = (".connection.", ".enter.")  # in names of weights of streams that are nearly equal


def config_of(*typed):
    keys = {text.partition("=")[0] for text in typed}
    return compose([*(text for text in SIZES if text.partition("=")[0] not in keys), *typed])


def batch_of(step):
    return batches(step, 8, 13, VOCABULARY)


def alone(config, **keys):
    """In one process, with other `keys` of the trainer."""
    config = replace(config, trainer=replace(config.trainer, **keys))
    return build_trainer(config, build_model(config, VOCABULARY), batch_of, lambda: ())


def in_shards(ranks, config):
    model = build_model(config, VOCABULARY, sharder("fsdp", "cpu", ranks))
    return build_trainer(config, model, batch_of, lambda: (), ranks=ranks)


def weights(trainer):
    return {name: whole(p.detach()).clone() for name, p in trainer.model.named_parameters()}


def gradients(trainer):
    named = trainer.model.named_parameters()
    return {name: whole(p.grad) for name, p in named if p.grad is not None}


def distance(found, expected, least=0.0):
    """The largest difference, in units of the largest number of the expected tensor, which counts
    as `least` at least."""
    unit = max(expected.abs().max().item(), least)
    difference = (found - expected).abs().max().item()
    return difference / unit if unit else difference


def first_gradients(ranks, cases):
    """For each case, how far one step's loss and gradients in shards are from those of one process.
    In float64 these are autograd's, of the whole batch at once. In float32, where the sum over a
    batch is as exact as its order, they are those of the same micro-batches."""
    losses.LOGITS = 5 * VOCABULARY  # several pieces for each micro-batch
    return [_compare_gradients(ranks, config) for config in cases]


def _compare_gradients(ranks, config):
    exact = config.trainer.precision == "fp64"
    one = alone(config, **{"compile": "none"} if exact else {})
    batch, trainer = batch_of(0), in_shards(ranks, config)
    begun, start = weights(one), weights(trainer)
    if exact:
        logits = one.model(batch[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(logits, batch[:, 1:].flatten())
        loss.backward()
    else:
        loss, _ = one.micro_batches.backward(batch, 0)
    total = trainer.micro_batches.backward(batch, 0)
    # Some gradients are zero but for rounding: that of a key's bias, and that of a factor of zero.
    expected, found = gradients(one), gradients(trainer)
    if exact:
        # Weights of nearly equal streams have gradients that cancel: the order of a sum counts.
        same = _gradients_of_one(config)
        expected |= {name: g for name, g in same.items() if any(c in name for c in CANCELLING)}
    least = 1e-4 * max(gradient.abs().max().item() for gradient in expected.values())
    assert found.keys() == expected.keys()
    rounding = (config.trainer.precision, config.trainer.compile) == ("fp32", "block")
    return {
        "roundings": _roundings(config, found, expected) if rounding else {},
        "sharded": all(sharded(p) for p in trainer.parameters),
        "start": max(distance(start[name], weight) for name, weight in begun.items()),
        "buffers": all(map(torch.equal, trainer.model.buffers(), one.model.buffers())),
        "loss": distance(total, loss.detach().expand(2)),
        "gradients": {n: distance(found[n], grad, least) for n, grad in expected.items()},
    }


def _roundings(config, found, compiled):
    """For each gradient in shards, its error in units of the error of one process, which is the
    larger of those with and without compiled blocks. Errors are distances to float64's gradients.

    A compiled block with shards has kernels of another order of sums than one without. Where a
    gradient cancels but for rounding, no digit of the two is the same."""
    exact = _gradients_of_one(config, precision="fp64", compile="none")
    eager = _gradients_of_one(config, compile="none")

    def error(gradient, name):
        return (gradient.double() - exact[name]).abs().max().item()

    usual = {name: max(error(compiled[name], name), error(eager[name], name)) for name in exact}
    return {name: error(found[name], name) / unit for name, unit in usual.items() if unit}


def _gradients_of_one(config, **keys):
    one = alone(config, **keys)
    one.micro_batches.backward(batch_of(0), 0)
    return gradients(one)


def steps(ranks, cases):
    """For each case, how far some steps of training in shards are from those in one process."""
    return [_compare_steps(ranks, config) for config in cases]


def _compare_steps(ranks, config):
    windows = [batch_of(9), batch_of(10)[:5], batch_of(11)[:3]]
    seen = []
    for each in (alone(config), in_shards(ranks, config)):
        probed = []
        for _ in range(STEPS):
            assert each.train_step() is None
            probed.append(each.probed)
        nats, tokens, _ = each.evaluate(windows)
        seen.append({
            "losses": torch.tensor(each.losses, dtype=torch.float64),
            "norm": torch.tensor(each.grad_norm, dtype=torch.float64),
            "nats": torch.tensor(nats, dtype=torch.float64), "tokens": tokens, "probed": probed,
            "tensors": {
                f"{kind}/{name}": whole(tensor.detach()) for kind, group in each.tensors().items()
                for name, tensor in group.items()
                # The gradient of a key's bias is rounding, which AdamW divides by itself.
                if "key.bias" not in name
            },
        })  # fmt: skip
    mine, expected = seen[1], seen[0]
    assert mine["tensors"].keys() == expected["tensors"].keys()
    return {
        **{key: distance(mine[key], expected[key]) for key in ("losses", "norm", "nats")},
        "probed": list(map(_differing, mine["probed"], expected["probed"])),
        "tokens": mine["tokens"] == expected["tokens"],
        "tensors": {
            name: distance(mine["tensors"][name], tensor)
            for name, tensor in expected["tensors"].items()
        },
    }  # fmt: skip


def cut_short(ranks, config):
    """A step in which a signal comes to the last rank in its third micro-batch: how many of them
    each rank computed, whether all raised Interrupted, and whether the weights are as before."""
    trainer = in_shards(ranks, config)
    before, parts = weights(trainer), trainer.micro_batches
    parts.stopping = SimpleNamespace(stop_requested=False)
    backward, computed = parts.loss.backward, []

    def counted(batch, count):
        computed.append(len(batch))
        parts.stopping.stop_requested = len(computed) == 3 and ranks.rank == ranks.count - 1
        return backward(batch, count)

    parts.loss.backward = counted
    with suppress(Interrupted):
        trainer.train_step()
        computed.clear()  # nothing was interrupted
    now = weights(trainer)
    return {
        "computed": len(computed),
        "of": parts.share,
        "as_before": all(torch.equal(now[name], weight) for name, weight in before.items()),
        "gradients": sum(p.grad is not None for p in trainer.parameters),
    }


def _differing(found, expected):
    """The probes that differ by more than a digit in the last place that is kept."""
    assert found.keys() == expected.keys()
    return {
        key: (found[key], expected[key]) for key in expected
        if found[key] != expected[key]
        and abs((found[key] or 0) - (expected[key] or 0)) > 2e-5 * abs(expected[key] or 0)
    }  # fmt: skip
