"""What makes a run that run: the hash of its config, and fingerprints of its data and code."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_norms.config import plugins
from transformer_norms.config.saved import YOUNGER_AXES

Config = Mapping[str, Any]

# Neither what is said about a run nor how it is watched, stored or started changes its result.
_NOT_IDENTITY = (
    "study tracking plugins again continue_from about choices words warnings "
    "trainer.threads trainer.checkpoint_every trainer.keep trainer.log_every trainer.probe_every "
    "trainer.activation_checkpointing trainer.replicas "
    "placement.source placement.brings placement.unverified "
    "norm.formula norm.source norm.brings"
).split()
# The rooms that training imports. What only watches a run is left out, and so is what stands beside
# the rooms, which starts and shows it.
_ROOMS = ("norms", "model", "data", "training", "config", "run")
_WATCHES = (
    "training/flops.py training/measures.py training/probes.py "
    "run/loading.py run/reader.py run/curve.py run/sweep_record.py"
).split()


def run_hash(config: Config, data_identity: Mapping[str, Any]) -> str:
    """16 hex digits of the resolved config, its files by their content, not their spelling."""
    return digest(identified(config, data_identity))


def identified(config: Config, data_identity: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that can change a result, with files by their content and not by their spelling."""
    plain = part(config)
    if "paths" in plain["data"]:
        plain["data"]["paths"] = dict(data_identity)
    return plain


def part(config: Config) -> dict[str, Any]:
    """The keys of a config that can change its run's result."""
    plain = json.loads(json.dumps(config))
    for key in _NOT_IDENTITY:
        *above, last = key.split(".")
        node = plain
        for name in above:
            node = node[name]
        node.pop(last, None)
    for axis, name in YOUNGER_AXES.items():  # the hashes of runs from before there was that axis
        if plain[axis] == {"type": name}:
            del plain[axis]
    for norm in plain["norms"].values():
        for key in ("formula", "source", "brings"):
            norm.pop(key, None)
    return plain


def difference(before: Config, now: Config) -> str:
    """The first key that makes two `identified` runs different, besides the horizon; or ''."""
    old, new = flat(before), flat(now)
    for key in sorted({*old, *new} - {"trainer.steps"}):
        if old.get(key) != new.get(key):
            return f"{key} is {old.get(key)} there and {new.get(key)} here"
    return ""


def flat(config: Config, above: str = "") -> dict[str, Any]:
    """{"trainer": {"steps": 8}} -> {"trainer.steps": 8}"""
    found: dict[str, Any] = {}
    for key, value in config.items():
        nested = isinstance(value, Mapping) and value
        found |= flat(value, f"{above}{key}.") if nested else {f"{above}{key}": value}
    return found


def digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def readable(config: Config, usual: Mapping[str, str]) -> str:
    """`rmsnorm-pre-s0`: norm, placement, every other choice that is not the usual one, the seed."""
    axes = "init position attention mlp model data tokenizer loss optimizer schedule".split()
    keys = ("embed", "final_norm", "qk_norm")
    choices = config["choices"]
    parts = [choices["norm"], choices["placement"]]
    parts += [
        choices[axis] for axis in axes if config["words"].get(axis, choices[axis]) != usual[axis]
    ]
    parts += [
        f"{key}_{choices[key]}".replace("_norm_", "_")
        for key in keys
        if config["words"][key] != "auto"
    ]
    return "-".join([*parts, f"s{config['seed']}"])[:150]


def code(config: Config) -> dict[str, str]:
    """SHA-256 of each source file that this training runs: path in the package -> hash."""
    package = Path(__file__).parents[1]
    files = {
        file.relative_to(package).as_posix(): file
        for file in sorted(package.rglob("*.py"))
        if _trains(file.relative_to(package), config)
    }
    folder = plugins.check(config["plugins"])
    return {
        name: hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        for name, file in {**files, **plugins.sources(folder)}.items()
    }


def _trains(file: Path, config: Config) -> bool:
    room = file.parts[0]
    if room == "norms":
        used = {_file_of_norm(spec["type"]) for spec in (config["norm"], *config["norms"].values())}
        return file.name in used or file.name not in _files_of_norms()
    return room in _ROOMS and file.as_posix() not in _WATCHES


def _files_of_norms() -> set[str]:
    """The files that define a norm; the others of that room are arithmetic that norms share."""
    from transformer_norms.norms import NORMS

    return {_file_of_norm(name) for name in NORMS}


def _file_of_norm(name: str) -> str:
    from transformer_norms.norms import NORMS

    return NORMS[name].__module__.rpartition(".")[2] + ".py"


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The names whose values differ, or that stand on one side alone."""
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
