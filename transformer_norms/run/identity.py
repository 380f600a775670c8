"""The identity of a run: a hash of all settings that can change its result, and of its data.

Two commands mean one run if `result_settings` are equal for both. These are all settings of the
resolved config but those that change a result by rounding at most: how often something is logged,
how many threads compute, the name of the study. The content of the data's files counts, and their
names do not. Versions of packages do not count, nor does the code. Its hashes are recorded: a
command says so where other code ended a run, and is refused where other code began it (folder.py).
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_norms.config import plugins
from transformer_norms.config.tree import Config, chosen_value, diff, flat, marked
from transformer_norms.kinds import Mark, plain, value_at
from transformer_norms.model.equation import canonical
from transformer_norms.storage.loaded_code import hash_loaded
from transformer_norms.training.settings import GROUPS

WEIGHTS = "weights"  # in the identity of the data: the hash of those that a run begins from
Resolved = Config | Mapping[str, Any]  # a config, or what config.yaml holds under `resolved`
# The keys that change no result beyond its last digits; each is marked where it is declared.
_NOT_IN_IDENTITY = tuple(marked(Mark.NOT_IN_IDENTITY))
# At this value a key is left out, so that runs from before the key keep their hash.
_NOT_HASHED_AT: dict[str, Any] = {
    "v_norm": "none",
    **dict.fromkeys(
        (
            "architecture.smear architecture.attention_gate architecture.q_rank "
            "architecture.kv_rank architecture.rope_dim architecture.value_dim "
            "architecture.value_residual architecture.value_embedding architecture.value_gate "
            "architecture.sliding_window architecture.attention_chunk "
            "architecture.temperature_floor architecture.values_from_keys "
            "architecture.kv_from_block architecture.activation_sparsity "
            "position.scaling data.separator trainer.qk_clip trainer.average"
        ).split(),
        "none",
    ),
    "architecture.embed_scale_order": "before",
    "architecture.value_scale": 1,
    "architecture.temperature_scale": 0.1,
    "architecture.rope_proportional": False,
    "optimizer.decay_embeddings": True,
    "optimizer.lr_factor": dict.fromkeys(GROUPS, 1),
    "data.test_fraction": 0,
    "data.val_paths": [],
}
_OF_A_MODEL = (
    "model architecture placement norm norms attention mlp position qkv embed final_norm qk_norm "
    "v_norm"
).split()
# The folders that training imports, and the helpers that compute or hold its values.
_ROOMS = ("norms", "model", "data", "training", "config", "run")
_HELPERS = ("formula.py", "kinds.py", "names.py", "validation.py")


def run_hash(config: Resolved, data_identity: Mapping[str, Any]) -> str:
    """Returns the identity of a run, 16 hexadecimal digits."""
    return digest(result_settings(config, data_identity))


def result_settings(config: Resolved, data_identity: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that can change a run's result. The paths of the data are replaced by
    the hashes of their content."""
    values: dict[str, Any] = plain(config)
    device = values["trainer"]["device"]
    for key in _NOT_IN_IDENTITY:
        _drop(values, key.split("."))
    # On a GPU Muon iterates in bfloat16, and dropout draws other numbers. All other runs are the
    # same on a CPU and on a GPU, and have the hash of a CPU's run.
    differs = values["optimizer"]["type"] == "muon" or values["model"]["dropout"] != 0
    values["trainer"]["device"] = device if differs else "cpu"
    values["trainer"]["compile"] = False  # a part of older hashes
    for key, value in _NOT_HASHED_AT.items():
        above, _, last = key.rpartition(".")
        node = value_at(values, above) if above else values
        if node.get(last) == value:
            del node[last]
    for norm in (values["norm"], *values["norms"].values()):
        if norm["type"] == "dyt" and norm.get("bias") is True:  # as before this key
            del norm["bias"]
    values["placement"] = _respell(values["placement"])
    files = dict(data_identity)
    if (weights := files.pop(WEIGHTS, None)) is not None:
        values["init"][WEIGHTS] = weights
    if "paths" in values["data"]:
        values["data"]["paths"] = files
        values["data"].pop("val_paths", None)
    if "path" in values["tokenizer"]:
        values["tokenizer"]["path"] = data_identity.get("tokenizer")
    return values


def _drop(node: dict[str, Any], key: list[str]) -> None:
    """Removes a key. `*` means every key of its node."""
    first, *rest = key
    if not rest:
        node.pop(first, None)
        return
    for name in node if first == "*" else [first]:
        if isinstance(node.get(name), dict):
            _drop(node[name], rest)


def _respell(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns a placement, or an entry of its `where`, with its equations in one spelling: `x+f(x)`
    is `x + f(x)`."""
    respelled, text = dict(entry), entry.get("equation")
    if isinstance(text, dict):
        respelled["equation"] = {part: canonical(one) for part, one in text.items()}
    elif text is not None:
        respelled["equation"] = canonical(text)
    if "where" in entry:
        respelled["where"] = [_respell(inner) for inner in entry["where"]]
    return respelled


def kind_of_kernels(config: Config) -> dict[str, Any]:
    """Returns the settings on which the compiled kernels of a run depend. Seeds, data and rates are
    not among them."""
    values, trainer = plain(config), config.trainer
    shape = trainer.batch_size, trainer.accumulation, trainer.precision, trainer.compile
    return {"shape": shape, **{key: values[key] for key in (*_OF_A_MODEL, "tokenizer", "loss")}}


def model_settings(config: Config) -> dict[str, Any]:
    """Returns the settings on which the function of a model's weights depends. The context is not
    among them, and neither is dropout."""
    values = result_settings(config, {})
    del values["model"]["context"], values["model"]["dropout"]
    return {key: values[key] for key in _OF_A_MODEL if key in values}


def settings_without_seeds(config: Resolved, data_identity: Mapping[str, Any]) -> dict[str, Any]:
    """Returns each dotted key that can change a run's result, without the seed, and without the
    seed of the data where that follows from it."""
    settings = flat(result_settings(config, data_identity))
    del settings["seed"]
    chosen = config["chosen"] if isinstance(config, Mapping) else config.chosen
    if chosen_value(chosen, "data.seed") == "auto":
        settings.pop("data.seed", None)
    return settings


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Returns the settings of two runs that differ, the first few of many, in one line, or an empty
    text."""
    pairs = diff(flat(before), flat(now), "not set").items()
    lines = [f"{key} is {old} there and {new} here" for key, (old, new) in pairs]
    return "; ".join([*lines[:3], f"{len(lines) - 3} more differ"] if len(lines) > 3 else lines)


def digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def code(config: Config) -> dict[str, str]:
    """Returns the SHA-256 of each source file that this training runs, by its path in the
    package."""
    from transformer_norms.norms import NORMS  # imports torch; a reader of runs must not

    def file_of_norm(name: str) -> str:
        return f"norms/{NORMS[name].__module__.rpartition('.')[2]}.py"

    package = Path(__file__).parents[1]
    used = {file_of_norm(norm.type) for norm in (config.norm, *config.norms.values())}
    unused = {*map(file_of_norm, NORMS)} - used
    files = {
        name: file
        for room in _ROOMS
        for file in sorted((package / room).rglob("*.py"))
        if (name := file.relative_to(package).as_posix()) not in unused
    }
    files |= {name: package / name for name in _HELPERS}
    files |= plugins.sources(plugins.check_plugins(config.plugins))
    return {name: full_hash[:16] for name, full_hash in hash_loaded(files).items()}
