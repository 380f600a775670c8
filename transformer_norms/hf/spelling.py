"""Facts as what is typed for them: the way of a foreign model through the config door."""

from typing import Any

from omegaconf import OmegaConf

from transformer_norms.hf.facts import SIZES, Facts, same, share
from transformer_norms.model.initialization import BIASED, biased
from transformer_norms.model.mlp import MLPS
from transformer_norms.names import option_files


def overrides_of(facts: Facts) -> list[str]:
    """What to type for the model that the facts describe."""
    sizes = [f"model.{key}={facts[f'model.{key}']}" for key in SIZES]
    typed = [f"{key}={facts[key]}" for key in ("placement", "norm", "position", "embed")]
    typed += [f"norm.eps={facts['norm.eps']}", *_mlp(*facts["mlp"]), *sizes]
    typed += [f"{key}={facts[key]}" for key in ("final_norm", "qk_norm")]
    architecture = {
        key.removeprefix("architecture."): value
        for key, value in facts.items()
        if key.startswith("architecture.")
    }
    bias, gated = architecture.pop("bias"), MLPS[facts["mlp"][0]].gated
    everywhere = biased(True) - (set() if gated else {"gate"})
    architecture["bias"] = _word(bias == everywhere) if bias in (everywhere, set()) else _list(bias)
    for key, value, spelled in (
        ("embed_scale", 1.0, "none"),
        ("embed_scale", facts["model.width"] ** 0.5, "sqrt(d)"),
        ("logit_scale", 1.0, "none"),
        ("attention_scale", facts["model.head_dim"] ** -0.5, "1/sqrt(dh)"),
    ):
        if same(architecture[key], value):
            architecture[key] = f"'{spelled}'"
    if "rope_base" in architecture:
        bases = architecture["rope_base"]
        architecture["rope_base"] = bases[0] if len(set(bases)) == 1 else _list(bases)
        turned = round(architecture["rope_fraction"] * facts["model.head_dim"])
        architecture["rope_fraction"] = share(turned, facts["model.head_dim"])
    return [*typed, *(f"architecture.{key}={_word(value)}" for key, value in architecture.items())]


def _mlp(kind: str, activation: str) -> list[str]:
    for name, file in option_files("mlp").items():
        if OmegaConf.load(file) == {"type": kind, "activation": activation}:
            return [f"mlp={name}"]
    return [f"mlp={'swiglu' if MLPS[kind].gated else 'gelu'}", f"mlp.activation={activation}"]


def _list(values: Any) -> str:
    ordered = (
        [role for role in BIASED if role in values] if isinstance(values, frozenset) else values
    )
    return f"[{','.join(str(value) for value in ordered)}]"


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
