"""The largest micro-batch that a device holds, and the fewest devices that hold a model."""

from transformer_norms.errors import ConfigError
from transformer_norms.plan.memory import FREE, GIB, memory_of
from transformer_norms.plan.rehearsal import Stage
from transformer_norms.plan.sharing import Layout, divide_step

MOST_DEVICES = 4096


def fit_batch(stage: Stage, layout: Layout, capacity: float) -> Layout:
    """Returns the layout with the fewest micro-batches, and so the largest, that fits; ConfigError
    where one sequence at a time does not."""
    config, workers = stage.config, layout.devices * layout.replicas
    batch = config.trainer.batch_size
    counts = [n for n in range(workers, batch + 1, workers) if batch % n == 0]
    tried = layout
    # Every one is tried, the largest first: fewer micro-batches also have fewer sets of gradients.
    for count in counts:
        tried = divide_step(config, layout.devices, count)
        if memory_of(stage, tried).fits(capacity):
            return tried
    raise ConfigError(_refusal(stage, tried, capacity))


def fit_devices(stage: Stage, layout: Layout, capacity: float) -> Layout:
    """Returns the layout on the fewest devices, a power of two, that hold the run; ConfigError
    where none do."""
    config, devices, last = stage.config, 1, layout
    while devices <= MOST_DEVICES:
        try:
            last = divide_step(config, devices)
        except ConfigError:  # a batch has so many sequences and no more
            break
        if memory_of(stage, last).fits(capacity):
            return last
        devices *= 2
    raise ConfigError(_refusal(stage, last, capacity))


def _refusal(stage: Stage, layout: Layout, capacity: float) -> str:
    needed = memory_of(stage, layout).peak / GIB
    advice = []
    if layout.parallel != "fsdp":
        advice.append("parallel=fsdp")
    if not stage.config.trainer.activation_checkpointing:
        advice.append("trainer.activation_checkpointing=true")
    if layout.share > 1:
        advice.append("more --devices or a smaller trainer.batch_size")
    return (
        f"--fit: a micro-batch of {layout.sequences} on {layout.devices} of the devices takes "
        f"{needed:.1f} GiB of each, and {1 - FREE:.0%} of one are "
        f"{(1 - FREE) * capacity / GIB:.1f} GiB"
        + (f"; less with {' or '.join(advice)}" if advice else "")
    )
