"""The identity of a run: the hash of its config, and the hashes of its code."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_norms.config import plugins
from transformer_norms.config.tree import Config, chosen_value, diff, flat, marked
from transformer_norms.kinds import Mark, plain, value_at
from transformer_norms.model.equation import canonical
from transformer_norms.storage.loaded_code import hash_loaded
from transformer_norms.training.settings import GROUPS

Resolved = Config | Mapping[str, Any]  # a config, or what config.yaml holds under `resolved`
# The keys that change no result beyond its last digits carry Mark.ASIDE where they are declared.
_ASIDE = tuple(marked(Mark.ASIDE))
# At this value a key is not part of a run's identity: the runs of before the key are the same runs.
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
            "position.scaling data.separator trainer.qk_clip"
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
# The rooms that training imports, and the helpers that compute or hold its values. The other
# helpers start a run and show it.
_ROOMS = ("norms", "model", "data", "training", "config", "run")
_NAMED = 3  # settings in a line
_HELPERS = ("formula.py", "kinds.py", "names.py", "validation.py")


def run_hash(config: Resolved, data_identity: Mapping[str, Any]) -> str:
    """Returns 16 hex digits that stand for all settings that can change a run's result."""
    return digest(result_settings(config, data_identity))


def result_settings(config: Resolved, data_identity: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that can change a run's result. The content of the data's files stands
    in the place of their paths."""
    values: dict[str, Any] = plain(config)
    device = values["trainer"]["device"]
    for key in _ASIDE:
        _drop(values, key.split("."))
    # Beyond its last digits a step is another one on a GPU: Muon iterates in bfloat16 there, and
    # dropout draws other numbers. Else the hash holds `cpu`, as it always has for a run on a CPU.
    differs = values["optimizer"]["type"] == "muon" or values["model"]["dropout"] != 0
    values["trainer"]["device"] = device if differs else "cpu"
    values["trainer"]["compile"] = False  # likewise: it was a part of the hash
    for key, value in _NOT_HASHED_AT.items():
        above, _, last = key.rpartition(".")
        node = value_at(values, above) if above else values
        if node.get(last) == value:
            del node[last]
    for norm in (values["norm"], *values["norms"].values()):
        if norm["type"] == "dyt" and norm.get("bias") is True:  # as above
            del norm["bias"]
    values["placement"] = _respell(values["placement"])
    if "paths" in values["data"]:
        values["data"]["paths"] = dict(data_identity)
        values["data"].pop("val_paths", None)
    if "path" in values["tokenizer"]:
        values["tokenizer"]["path"] = data_identity.get("tokenizer")
    return values


def kind_of_kernels(config: Config) -> dict[str, Any]:
    """Returns the settings on which the compiled kernels of a run depend. Seeds, data and rates are
    not among them."""
    values, trainer = plain(config), config.trainer
    model = "model architecture placement norm norms attention mlp position qkv".split()
    nodes = [*model, *"embed final_norm qk_norm v_norm tokenizer loss".split()]
    shape = trainer.batch_size, trainer.accumulation, trainer.precision, trainer.compile
    return {"shape": shape, **{key: values[key] for key in nodes}}


def settings_without_seeds(config: Resolved, data_identity: Mapping[str, Any]) -> dict[str, Any]:
    """Returns each dotted key that can change a run's result, without the seed, and without the
    seed of the data where that follows from it."""
    settings = flat(result_settings(config, data_identity))
    del settings["seed"]
    chosen = config["chosen"] if isinstance(config, Mapping) else config.chosen
    if chosen_value(chosen, "data.seed") == "auto":
        settings.pop("data.seed", None)
    return settings


def _respell(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns a placement, or an entry of its `where`, with its equations in one spelling: `x+f(x)`
    is `x + f(x)`."""
    respelled = dict(entry)
    text = entry.get("equation")
    if isinstance(text, dict):
        respelled["equation"] = {part: canonical(one) for part, one in text.items()}
    elif text is not None:
        respelled["equation"] = canonical(text)
    if "where" in entry:
        respelled["where"] = [_respell(inner) for inner in entry["where"]]
    return respelled


def _drop(node: dict[str, Any], key: list[str]) -> None:
    """Removes a key. `*` stands for every key of its node."""
    first, *rest = key
    if not rest:
        node.pop(first, None)
    for name in (node if first == "*" else [first]) if rest else ():
        if isinstance(node.get(name), dict):
            _drop(node[name], rest)


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Returns the settings of two runs that differ, the first few of many, in one line, or an empty
    text."""
    pairs = diff(flat(before), flat(now), "not set")
    shown = [f"{key} is {old} there and {new} here" for key, (old, new) in pairs.items()][:_NAMED]
    more = len(pairs) - len(shown)
    return "; ".join([*shown, f"{more} more differ"] if more else shown)


def digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def readable(config: Config, defaults: Mapping[str, str]) -> str:
    """Returns a name such as `rmsnorm-pre-s0`: norm, placement, each other choice that is not the
    default, seed. A typed equation becomes `norm_x-f_norm_x`. Two runs may share the name, because
    the hash behind it differs."""
    axes = "recipe init position attention mlp model data tokenizer loss optimizer schedule".split()
    chosen, choices = config.chosen.choices, config.choices
    words = re.sub(r"[^A-Za-z0-9_.-]+", "_", re.sub(r"\s*[+]\s*", "-", choices.placement))
    parts = [choices.norm, words.strip("_.-")[:60]]
    parts += [choices[axis] for axis in axes if chosen[axis] != defaults[axis]]
    parts += [
        f"{key}_{choices[key]}".replace("_norm_", "_")
        for key in ("embed", "final_norm", "qk_norm", "v_norm")
        if chosen_value(config.chosen, key) != "auto"
    ]
    return "-".join([*parts, f"s{config.seed}"])[:150]


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
    folder = plugins.check_plugins(config.plugins)
    sources = {**files, **plugins.sources(folder)}
    return {name: digest[:16] for name, digest in hash_loaded(sources).items()}
