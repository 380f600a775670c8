"""Translates a config.yaml that was written before there was `resolved` into today's form.

Such a file holds resolved values, `words` beside them where a choice was auto, and a placement
whose sites stand in sections beside its equation.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from omegaconf import OmegaConf

from transformer_norms.config.overrides import to_dict
from transformer_norms.formula import Formula
from transformer_norms.model.placement import Placement
from transformer_norms.model.sites import REST_OF_B
from transformer_norms.names import AXES_OF_A_RUN, current_names, option_files
from transformer_norms.training.settings import GROUPS

# The value of keys that are younger than a file without them.
_YOUNGER: dict[str, Any] = {
    "trainer.probe_every": 0,
    "trainer.activation_checkpointing": False,
    "trainer.replicas": 1,
    "attention": {"type": "softmax"},
    "loss": {"type": "cross_entropy"},
    "choices.attention": "softmax",
    "choices.loss": "cross_entropy",
}


def translate(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the choices, and under `resolved` what came of them. The caller checks both."""
    resolved = copy.deepcopy(dict(saved))
    words = resolved.pop("words")
    for key, value in _YOUNGER.items():
        *above, last = key.split(".")
        _node(resolved, above).setdefault(last, value)
    if isinstance(resolved.get("placement"), dict):
        names = resolved.get("choices", {})
        resolved["placement"] = _placement(resolved["placement"], names.get("placement"))
    derived = ("choices", "norms", "qkv", "warnings")
    chosen = copy.deepcopy({key: node for key, node in resolved.items() if key not in derived})
    for key, word in words.items():
        *above, last = key.split(".")
        if key != "init":
            _node(chosen, above)[last] = word
    names = resolved.get("choices", {})
    axes = {axis: names[axis] for axis in AXES_OF_A_RUN if axis in names}
    axes["init"] = words.get("init")
    return {"choices": axes, **chosen, "resolved": resolved}


# Keys that are younger than `resolved:`: the node (no name means the root), the types of it that
# have the key (no type means all), the key, and the value that was built before. At this value a
# key is no part of a run's identity.
YOUNGER: tuple[tuple[str, tuple[str, ...], str, Any], ...] = (
    ("", (), "v_norm", "none"),
    ("architecture", (), "embed_scale_order", "before"),
    ("architecture", (), "smear", "none"),
    ("architecture", (), "attention_gate", "none"),
    *(("architecture", (), key, "none") for key in ("q_rank", "kv_rank", "rope_dim", "value_dim")),
    ("architecture", (), "value_scale", 1),
    ("architecture", (), "value_residual", "none"),
    ("architecture", (), "value_embedding", "none"),
    ("architecture", (), "value_gate", "none"),
    ("architecture", (), "sliding_window", "none"),
    ("architecture", (), "attention_chunk", "none"),
    ("architecture", (), "temperature_floor", "none"),
    ("architecture", (), "temperature_scale", 0.1),
    ("architecture", (), "rope_proportional", False),
    ("architecture", (), "values_from_keys", "none"),
    ("architecture", (), "kv_from_block", "none"),
    ("architecture", (), "activation_sparsity", "none"),
    ("optimizer", ("adamw", "muon"), "decay_embeddings", True),
    ("optimizer", ("adamw", "muon"), "lr_factor", dict.fromkeys(GROUPS, 1)),
    ("norm", ("dyt",), "bias", True),
    ("position", ("rope",), "scaling", "none"),
    ("data", (), "test_fraction", 0),
    ("data", ("text", "jsonl", "parquet"), "val_paths", []),
    ("data", ("text",), "separator", "none"),
    ("trainer", (), "keep_optimizer", False),
    ("trainer", (), "qk_clip", "none"),
    ("about", (), "recipe_source", "none"),
    ("about", (), "recipe_unverified", "none"),
    ("choices", (), "recipe", "none"),
    *(("tracking", ("wandb",), key, "none") for key in ("model", "project", "entity", "group")),
    ("tracking", ("wandb",), "name", "none"),
    ("tracking", ("wandb",), "tags", []),
)


# What of these was chosen, where it came to that value. Old inits state no factors.
_CHOSEN: dict[str, Any] = {"lr_factor": dict.fromkeys(GROUPS, "auto"), "v_norm": "auto"}


def younger_keys(resolved: Any) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yields each node that may have a younger key, the key, and the value built before. The other
    norms of a model stand in `norms`."""
    for name, types, key, value in YOUNGER:
        nodes = [_node(resolved, name.split())]
        if name == "norm":
            norms = _node(resolved, ["norms"])
            nodes += norms.values() if isinstance(norms, dict) else ()
        for node in nodes:
            if isinstance(node, dict) and (not types or node.get("type") in types):
                yield node, key, value


def complete(saved: Any) -> Any:
    """The same with the keys that are younger than the file, at the value that was built then."""
    saved = copy.deepcopy(saved)
    if not isinstance(saved, dict):
        return saved
    for tree in (saved, saved.get("resolved")):
        for node, key, value in younger_keys(tree):
            chosen = _CHOSEN.get(key, value) if tree is saved else value
            node.setdefault(key, copy.deepcopy(chosen))
        if isinstance(tree, dict):
            tree.setdefault("parallel", {"type": "none"})
            _put_tokens(tree, chosen=tree is saved)
            _name_compile(tree)
            if isinstance(tree.get("choices"), dict):
                words = {} if tree is saved else {"v_norm": "none"}
                tree["choices"] = {**words, **current_names(tree["choices"])}
    # Such a file was chosen for auto, and its values meant nothing.
    if saved.get("init") == {"std": {"default": 0}, "truncate": "none"}:
        saved["init"] = {}
    choices, init = saved.get("choices"), saved.get("init")
    if isinstance(choices, dict) and isinstance(init, dict) and choices.get("init") == "auto":
        init.setdefault("otherwise", "scaled")
    return saved


def _put_tokens(tree: dict[str, Any], chosen: bool) -> None:
    """Adds `trainer.tokens` to a file that is older than it."""
    trainer, context = _node(tree, ["trainer"]), _node(tree, ["model", "context"])
    if isinstance(trainer, dict) and "tokens" not in trainer:
        read = (trainer.get("steps"), trainer.get("batch_size"), context)
        numbers = all(isinstance(number, int) for number in read)
        trainer["tokens"] = prod(read) if numbers and not chosen else "auto"


def _name_compile(tree: dict[str, Any]) -> None:
    """Replaces the true or false of `trainer.compile` by the word that has its meaning."""
    trainer = _node(tree, ["trainer"])
    if isinstance(trainer, dict) and isinstance(trainer.get("compile"), bool):
        trainer["compile"] = "block" if trainer["compile"] else "none"


def _node(values: Any, above: list[str]) -> Any:
    for name in above:
        values = values.get(name, {}) if isinstance(values, dict) else {}
    return values


def _placement(old: Mapping[str, Any], name: Any) -> dict[str, Any]:
    """Returns today's file of that name, with what it brought then, if its equation states what the
    sections state. Otherwise returns an equation that is written from the sections, because these
    are what ran."""
    if "learned" in old or "where" in old:
        return dict(old)
    new = {key: old[key] for key in ("source", "weight_constraint", "brings", "unverified")
           if key in old}  # fmt: skip
    writer = _Writer(old.get("topology", "serial"), old.get("block", {}))
    new["equation"] = writer.write(old)
    if entries := old.get("schedule"):
        new["where"] = [
            {"blocks": entry["blocks"], "equation": writer.write(entry)} for entry in entries
        ]
    new["learned"] = writer.learned
    file = option_files("placement").get(str(name))
    today = {} if file is None else to_dict(OmegaConf.load(file))
    if not today or _plans(today) != _plans(new):
        return new
    return {**today, "brings": old.get("brings", {})}


def _plans(node: Mapping[str, Any]) -> list[Any]:
    """Returns all that the equations of a placement state, without the names of coefficients."""
    placement = Placement(**node)
    entries = [placement.default, *placement.where]
    plans = [
        (
            entry.blocks.text,
            part,
            {name: replace(site, scale=_number(site.scale)) for name, site in plan.sites.items()},
            {name: _number(spec) for name, spec in plan.coefficients.items()},
            plan.adds,
            plan.enters,
        )
        for entry in entries
        for part, plan in sorted(entry.plans.items())
    ]
    return [placement.topology, placement.weight_constraint, *plans]


def _number(spec: Any) -> Any:
    """Returns a formula's value in an arbitrary block, which two spellings have in common."""
    if isinstance(spec, Mapping) or spec == REST_OF_B:
        return spec
    return Formula(spec)({**dict.fromkeys("RdHmL", 24), "dh": 6, "N": 12, "i": 4, "l": 5})


class _Writer:
    """Writes the equation of the sections `both`, `attention` and `mlp`, and collects the learned
    coefficients in `learned`."""

    def __init__(self, topology: str, block: Mapping[str, Any]) -> None:
        self.topology, self.block = topology, block
        self.learned: dict[str, Any] = {}

    def write(self, sections: Mapping[str, Any]) -> str | dict[str, str]:
        both = sections.get("both", {})
        plans = {
            kind: {**both, **sections.get(kind, {})}
            for kind in ("attention", "mlp")
            if kind in sections or "both" in sections or "blocks" not in sections
        }
        if self.topology == "dual":
            inner = {kind: self.branch(kind, plan, "f") for kind, plan in plans.items()}
            x = self.site(plans["mlp"].get("post", "none"), f"x + {inner['mlp']}")
            return {"x": x, "r": f"r + {inner['mlp']}", "end": "x + norm(r)"}
        if self.topology == "parallel":
            shared = "pre" in self.block
            terms = [self.branch(kind, plan, kind) for kind, plan in plans.items()]
            if shared:
                h = self.site(self.block["pre"], "x")
                terms = [term.replace("(x", "(h", 1) for term in terms]
                terms[0] = terms[0].replace("(h", f"(h := {h}", 1)
            return " + ".join(["x", *terms])
        equations = {kind: self.serial(kind, plan) for kind, plan in plans.items()}
        one_for_both = len(equations) == 2 and len(set(equations.values())) == 1
        return equations["mlp"] if one_for_both else equations

    def serial(self, kind: str, plan: Mapping[str, Any]) -> str:
        if plan.get("a") == REST_OF_B:
            branch = self.branch(kind, {**plan, "b": 1}, "f")
            sum_ = f"x + {self.factor(kind, 'b', plan['b'])}({branch} - x)"
        else:
            sum_ = f"{self.factor(kind, 'a', plan.get('a', 1))}x + {self.branch(kind, plan, 'f')}"
        if plan.get("skip") == "block":
            sum_ += " + start"
        return self.site(plan.get("post", "none"), sum_)

    def branch(self, kind: str, plan: Mapping[str, Any], f: str) -> str:
        arguments = [self.scaled(kind, "pre", plan.get("pre", "none"), "x")]
        for key in ("q", "k", "v", "head_norm", "ctx", "mid"):
            if key in plan:
                arguments.append(f"{key}={self.scaled(kind, key, plan[key])}")
        for key in ("head_scale", "hidden_scale"):
            if key in plan:
                arguments.append(f"{key}={self.factor(kind, key, plan[key]).removesuffix(' * ')}")
        called = self.scaled(kind, "out", plan.get("out", "none"), f"{f}({', '.join(arguments)})")
        return self.factor(kind, "b", plan.get("b", 1)) + called

    def scaled(self, kind: str, key: str, spec: Any, x: str | None = None) -> str:
        """Returns a norm of x, or a norm alone, times its scale if it has one."""
        scale = 1
        if isinstance(spec, Mapping):
            spec, scale = spec["norm"], spec["scale"]
        return self.factor(kind, f"s_{key}", scale) + self.site(spec, x)

    def site(self, norm: str, x: str | None) -> str:
        norm = norm.removesuffix("@head")
        if x is None:
            return norm
        return x if norm == "none" else f"{norm}({x})"

    def factor(self, kind: str, key: str, spec: Any) -> str:
        """Returns `name * ` for a learned coefficient, `(formula) * ` for a computed one, and an
        empty text for 1."""
        if not isinstance(spec, Mapping):
            return "" if spec == 1 else f"({spec}) * "
        name = key if self.learned.get(key, spec) == spec else f"{key}_{kind}"
        name = {"head_scale": "s_heads", "hidden_scale": "s_hidden"}.get(name, name)
        self.learned[name] = dict(spec)
        return f"{name} * "
