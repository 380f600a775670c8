"""From what was typed to the models that are measured, every one composed before any is."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from transformer_norms.config.compose import check_names, compose, plain
from transformer_norms.config.overrides import as_typed
from transformer_norms.errors import ConfigError
from transformer_norms.progress import Tell, each, untold
from transformer_norms.run.sweep_record import Values, label
from transformer_norms.sweep.question import Question, read_request

Config = Mapping[str, Any]
DEPTH, WIDTH, MLP_WIDTH = "model.depth", "model.width", "model.mlp_width"
USUAL = {
    "placement": "pre,post,sandwich,out",
    DEPTH: "2,4,8,16,32",
    "seed": "0,1,2",
    WIDTH: "64",
    "model.heads": "4",
    "model.context": "16",
}
# Xiong et al. 2020 suppose attention to be uniform, as it is where queries and keys are zero, and
# the stream to enter with mean square 1.
XIONG = {
    "mlp": "relu",
    MLP_WIDTH: WIDTH,
    "init": "xavier",
    "init.std": "{embedding:1,head:'1/sqrt(d)',query:0,key:0}",
    "position": "none",
    "embed": "none",
    "architecture.tied": "false",
    "architecture.embed_scale": "none",
    "model.kv_heads": "auto",
    "model.head_dim": "auto",
    "model.dropout": "0",
}
_UNREAD = (
    "config data tokenizer optimizer schedule trainer tracking study again continue_from launcher "
    "parallel sweep hydra"
).split()


@dataclass(frozen=True)
class Setting:
    """What is measured: by a variant's name its composed configs, one for each depth and seed.
    `keys` are those that they come from, typed or usual."""

    keys: tuple[str, ...]
    variants: Mapping[str, Sequence[Config]]
    xiong: bool

    @property
    def configs(self) -> Iterator[tuple[str, Config]]:
        yield from ((name, one) for name, configs in self.variants.items() for one in configs)

    @property
    def depths(self) -> list[int]:
        return sorted({config["model"]["depth"] for _, config in self.configs})

    @property
    def seeds(self) -> list[int]:
        return sorted({config["seed"] for _, config in self.configs})

    @property
    def warnings(self) -> list[str]:
        """Each once, with the first variant that has it."""
        found: dict[str, str] = {}
        for name, config in self.configs:
            for warning in config["warnings"]:
                found.setdefault(warning, f"{warning} (in {name})")
        return list(found.values())


def setting(arguments: Sequence[str], xiong: bool = False, tell: Tell = untold) -> Setting:
    """KEY=A,B as `train.py -m` takes them, and the usual ones where they are not typed.
    ConfigError, one line, where one cannot be, or contradicts what `xiong` supposes."""
    typed = [text.partition("=")[0] for text in arguments]
    for key, text in zip(typed, arguments, strict=True):
        _check(key, text, xiong)
    usual = {**USUAL, **({**XIONG, "model.heads": "1"} if xiong else {})}
    if "preset" in typed:
        del usual["placement"]
    keys = (*(f"{key}={usual[key]}" for key in usual if key not in typed), *arguments)
    question = read_request(text for text in keys if text != f"{MLP_WIDTH}={WIDTH}").question
    wanted = list(_models(question, xiong))
    variants: dict[str, list[Config]] = {name: [] for name, _ in wanted}
    for name, values in each(tell, "composing models {:.0f}/{:.0f}", wanted):
        variants[name].append(_composed(name, values))
    return Setting(keys, variants, xiong)


def _check(key: str, text: str, xiong: bool) -> None:
    if key == "model" or key.split(".")[0] in _UNREAD:
        raise ConfigError(
            f"{text}: is not read here, where nothing is trained and sizes are typed one by one; "
            "type keys of a model, such as norm=layernorm or model.width=128"
        )
    for own, value in XIONG.items() if xiong else ():
        if key == own or key.startswith(f"{own}."):
            raise ConfigError(f"{text}: --xiong supposes {own}={value}; leave one of them out")


def _models(question: Question, xiong: bool) -> Iterator[tuple[str, Values]]:
    """The name of a variant, and all keys of one of its models."""
    vary = dict(question.vary)
    if DEPTH not in vary:
        depth = as_typed(DEPTH, question.fixed[DEPTH])
        raise ConfigError(f"{depth}: a slope wants 2 depths or more, such as {DEPTH}=2,4,8")
    depths = vary.pop(DEPTH)
    variants = replace(question, vary=vary, baseline={}).variants
    pairs = [pair for values in (question.fixed, *variants) for pair in values.items()]
    check_names(dict.fromkeys(as_typed(key, value) for key, value in pairs))
    for variant in variants:
        values = {**question.fixed, **variant}
        if xiong:
            values[MLP_WIDTH] = values[WIDTH]
        shown = variant or {key: values[key] for key in ("preset", "placement") if key in values}
        for depth, seed in product(depths, question.seeds):
            yield label(shown), {**values, DEPTH: depth, "seed": seed}


def _composed(variant: str, values: Values) -> Config:
    try:
        return plain(compose(as_typed(key, value) for key, value in values.items()))
    except ConfigError as error:
        raise ConfigError(f"{error} (in {variant})") from None
