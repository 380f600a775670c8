"""Builds the model of a config, and what trains it: batches, optimizers, schedulers, a trainer."""

from collections.abc import Callable, Sequence
from functools import partial
from math import lcm
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from transformer_norms.config.tree import Config, check_config
from transformer_norms.data import Tokens
from transformer_norms.data.batches import Batches
from transformer_norms.model.architecture import GIVEN
from transformer_norms.model.assembly import Assembly, dropout_of
from transformer_norms.model.coefficient import LogitCap, Smear, coefficient, stream_shapes
from transformer_norms.model.constraint import CONSTRAINTS, QKClip
from transformer_norms.model.initialization import biased, rule_of
from transformer_norms.model.position import ORDERS, POSITIONS, NoPosition
from transformer_norms.model.sizes import formula_values
from transformer_norms.model.transformer import Transformer, separate, straight
from transformer_norms.norms import nothing
from transformer_norms.training.averages import AVERAGES
from transformer_norms.training.graphs.compiling import Compilation, choose_mode
from transformer_norms.training.graphs.recomputation import recompute
from transformer_norms.training.loss import LOSSES, ModelLoss
from transformer_norms.training.optimizer import OPTIMIZERS
from transformer_norms.training.parallel.micro_batches import MicroBatches
from transformer_norms.training.parallel.ranks import ALONE, Ranks
from transformer_norms.training.parallel.sharding import ShardedLoss, ShardedMicroBatches
from transformer_norms.training.schedule import SCHEDULES
from transformer_norms.training.settings import TrainerSettings
from transformer_norms.training.tensors import move_model, shard_like, sharded
from transformer_norms.training.trainer import Trainer, Windows

Shard = Callable[[Any], Any]  # from `sharder`, or `nothing` where a process has the whole model


def build_model(config: Config, vocab_size: int, shard: Shard = nothing) -> Transformer:
    """Returns the model of a composed config on the CPU, its weights drawn from `config.seed`, in
    float64 where trainer.precision=fp64 and in float32 otherwise. `model.config` is the config.
    `shard`, from `sharder`, leaves to each rank its shards, on the device of `sharder`."""
    check_config(config)
    model = build_uninitialized(config, vocab_size, shard)
    rule_of(config.init).apply(model, config.seed, config.model, shard_like)
    model.constrain(model)
    return model


def build_uninitialized(config: Config, vocab_size: int, shard: Shard = nothing) -> Transformer:
    """Returns the model before its weights are drawn, for a caller who sets them. Each block is cut
    by `shard` as soon as it is built, then what is outside of the blocks."""
    precise = nn.Module.double if config.trainer.precision == "fp64" else nothing
    sizes, architecture = config.model, config.architecture
    width, values = sizes.width, formula_values(sizes)
    of_tokens, of_logits = (
        nothing if spec == "none" else coefficient(spec, stream_shapes(size), values)
        for spec, size in (
            (architecture.embed_scale, width),
            (architecture.logit_scale, vocab_size),
        )
    )
    position = build_position(config)
    assembly = Assembly(config, position, vocab_size=vocab_size)
    enter, final = assembly.ends(assembly.end_norm("final", config.final_norm))
    cap, fixnorm = architecture.logit_cap, config.embed == "fixnorm"
    model = Transformer(
        vocab_size=vocab_size,
        width=width,
        context=sizes.context,
        position=position,
        blocks=[shard(precise(assembly(i))) for i in range(sizes.depth)],
        tied=architecture.tied,
        bias="head" in biased(architecture.bias),
        scale=of_tokens,
        enter_positions=ORDERS[architecture.embed_scale_order],
        embed=assembly.end_norm("embed", "none" if fixnorm else config.embed),
        smear=nothing if architecture.smear == "none" else Smear(architecture.smear),
        final=final,
        dropout=dropout_of(sizes.dropout),
        logit_scale=of_logits,
        cap=nothing if cap == "none" else LogitCap(cap),
        rows=assembly.end_norm("rows", "l2norm" if fixnorm else "none"),
        enter=enter,
        constrain=CONSTRAINTS[assembly.placement.weight_constraint],
        gives=any(getattr(architecture, key) != "none" for key in GIVEN),
    )
    model.config = config
    shard(precise(model))
    return model


def build_position(config: Config) -> NoPosition:
    """Returns the positions of tokens, for all blocks of a model."""
    sizes, architecture, blocks = config.model, config.architecture, config.blocks
    turned = [own.rope_dim or own.sizes.head_dim for own in blocks]
    position: NoPosition = POSITIONS.maker(config.position)(
        width=sizes.width,
        context=sizes.context,
        head_dim=turned[0] if len(set(turned)) == 1 else turned,
        bases=[own.rope_base for own in blocks],
        fractions=[own.rope_fraction for own in blocks],
        interleaved=architecture.rope_interleaved,
        proportional=architecture.rope_proportional,
    )
    return position


def build_batches(config: Config, tokens: Tokens) -> Batches:
    """Returns what a run trains on: `batches(step)` has `trainer.batch_size` rows of
    `model.context` tokens and the one after them, int64 [batch, time + 1], for any step from 0."""
    sizes, settings = config.model, config.trainer
    return Batches(tokens.train, sizes.context, settings.batch_size, config.data.seed)


def build_optimizers(config: Config, model: nn.Module) -> list[Optimizer]:
    """Returns torch's optimizers of a composed config for the parameters of its model, which is on
    its device already. Each group of parameters has its own rate and weight decay."""
    optimizers = OPTIMIZERS.maker(config.optimizer)(model)
    return [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)


def build_schedulers(config: Config, optimizers: Sequence[Optimizer]) -> list[LambdaLR]:
    """Returns torch's scheduler for each optimizer: the rates of a run of `trainer.steps` steps.
    Call each scheduler's step() after every step of the optimizers."""
    schedule, steps = SCHEDULES.maker(config.schedule), config.trainer.steps
    return [LambdaLR(optimizer, lambda step: schedule(step, steps)) for optimizer in optimizers]


def build_trainer(
    config: Config,
    model: Transformer,
    batches: Callable[[int], Any],
    validation: Windows,
    replicas: int = 1,
    ranks: Ranks = ALONE,
    micro_batches: int = 0,
    loss: Callable[..., ModelLoss] = ModelLoss,
) -> Trainer:
    """Returns the trainer of a composed config. Moves the model to the config's device.

    `ranks`, and `replicas` of the model on each, share the `micro_batches` of a step, which are by
    default as few as can be shared; `divide` says how many replicas there can be. Each
    replica works on as many threads as torch has, so a caller who asks for several divides the
    threads among them (torch.set_num_threads). `loss` makes the loss of the model."""
    settings = config.trainer
    model, compilation = _prepare(model, settings)
    # Before there are replicas, which share what it reads.
    qk_clip = None if settings.qk_clip == "none" else QKClip(model, settings.qk_clip, shard_like)
    count = micro_batches or lcm(settings.accumulation, replicas * ranks.count)
    in_shards = compilation.sharded
    work = (ShardedMicroBatches if in_shards else MicroBatches)(
        (ShardedLoss if in_shards else loss)(
            model,
            LOSSES.maker(config.loss)(),
            device=settings.device,
            precision=settings.precision,
            compilation=compilation,
            rows=settings.batch_size // count,
        ),
        count=count,
        accumulation=settings.accumulation,
        replicas=replicas,
        ranks=ranks,
        seed=config.seed,
    )
    return Trainer(
        model,
        batches,
        validation,
        build_optimizers(config, model),
        SCHEDULES.maker(config.schedule),
        settings,
        micro_batches=work,
        warmup=config.schedule.get("warmup", 0),
        qk_clip=qk_clip,
        average=None if settings.average == "none" else AVERAGES.maker(settings.average)(model),
    )


def _prepare(model: Transformer, settings: TrainerSettings) -> tuple[Transformer, Compilation]:
    """Returns the model on its device, its blocks compiled where they are, and what compiles the
    rest."""
    model = move_model(model, settings.device)
    in_shards = sharded(model.embedding.weight)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    mode = choose_mode(settings, parameters, model.context)
    compilation = Compilation(mode, in_shards)
    model.through = compilation(straight, "a block", "block")
    model.entering = separate if mode == "block" else nothing
    if settings.activation_checkpointing:
        model.through = partial(recompute, run=model.through)
    return model, compilation
