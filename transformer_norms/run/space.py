"""The space of a run on its disk."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_norms.config.tree import Config
from transformer_norms.errors import ConfigError
from transformer_norms.run.metrics import LONGEST

if TYPE_CHECKING:
    from torch.nn import Parameter

_MARGIN = 1.1
_FILE = 4096  # bytes by which a file system rounds up
_PER_TENSOR = 256  # bytes in the headers of a checkpoint's files
_ROW, _PROBED, _PROBED_BLOCK = 400, 2000, 2000  # bytes of a line of metrics.jsonl, and of a probe's
_WORD = 64  # bytes of an entry of a saved vocabulary
_REST = 1 << 20  # config.yaml, summary.json, curve.svg, each with its draft
_MIRROR = 8 << 20  # W&B's own files


def space_left_to_write(folder: Path, config: Config, vocab_size: int) -> int:
    """Returns how many bytes more a run will write into its folder, which it may have begun: `keep`
    checkpoints, the one that is being written and that of a branch, the metrics and their copy at a
    resume, and small files."""
    keys, metrics = config.trainer, _metrics_size(config)
    checkpoint = _checkpoint_size(config, vocab_size)
    branch = keys.steps < max(keys.horizons, default=0)
    needed = (keys.keep + 1 + branch) * checkpoint + 2 * metrics + 2 * _WORD * vocab_size + _REST
    if config.tracking.type != "none":
        needed += _MIRROR + metrics + (checkpoint if config.tracking.model != "none" else 0)
    for file in folder.rglob("*"):
        with suppress(OSError):  # gone meanwhile
            needed -= file.lstat().st_blocks * 512
    return max(0, needed)


def _metrics_size(config: Config) -> int:
    keys = config.trainer
    probes = 1 + (keys.steps // keys.probe_every if keys.probe_every else 0)
    rows = 2 + keys.steps // keys.log_every
    rows += keys.steps // keys.eval_every if keys.eval_every else 0
    return rows * _ROW + probes * (_PROBED + _PROBED_BLOCK * config.model.depth)


def check_metrics_size(config: Config) -> None:
    """Raises ConfigError if the run's metrics.jsonl may outgrow what a reader takes."""
    size, keys = _metrics_size(config), config.trainer
    if size > LONGEST:
        raise ConfigError(
            f"trainer.log_every={keys.log_every} trainer.eval_every={keys.eval_every} "
            f"trainer.probe_every={keys.probe_every}: in {keys.steps:,} steps metrics.jsonl may "
            f"take {size / 1e9:.1f} GB, and readers take {LONGEST / 1e9:.1f} GB at most; type "
            "larger ones"
        )


def _checkpoint_size(config: Config, vocab_size: int) -> int:
    shapes = [parameter.shape for parameter in _parameters(config, vocab_size)]
    number = 8 if config.trainer.precision == "fp64" else 4
    averaged, _ = config.trainer.averaging
    copies = 3 + averaged + (averaged > 1)  # weights, two moments, an average, its snapshots
    weights = copies * number * sum(shape.numel() for shape in shapes)
    return int(_MARGIN * weights) + _PER_TENSOR * copies * len(shapes) + 6 * _FILE


def _parameters(config: Config, vocab_size: int) -> "list[Parameter]":
    import torch  # which preparing tokens alone does not need

    from transformer_norms.config.building import build_uninitialized

    try:
        with torch.device("meta"):
            return list(build_uninitialized(config, vocab_size).parameters())
    except Exception:  # a plugin's norm may compute with weights, which have no values there
        return list(build_uninitialized(config, vocab_size).parameters())
