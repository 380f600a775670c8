"""A transformers model as one of ours and back, through the facts that both state."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer_norms.config.building import build_uninitialized
from transformer_norms.config.compose import compose
from transformer_norms.config.tree import Config
from transformer_norms.hf.facts import Facts, differences, facts_of, format_fact
from transformer_norms.hf.families import FAMILIES, Family
from transformer_norms.hf.weights import our_tensors, tensors_of, their_tensors
from transformer_norms.model.transformer import Transformer
from transformer_norms.names import did_you_mean, nearest

BY_NAME = {family.model_type: family for family in FAMILIES}
ELSEWHERE = {
    "mpt": "its norms have no bias, and its family is not built",
    **dict.fromkeys(
        ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gpt_oss"), "experts are not built"
    ),
    "gemma3": "it reads images; its text model is gemma3_text",
    "gemma3n": "it reads images and sound; its text model is gemma3n_text",
    "gemma4": "it reads images; its text model is gemma4_text",
    "llama4": "it reads images; its text model is llama4_text",
}


def from_hf(hf_model: Any) -> Transformer:
    """Our model with the weights of a transformers causal language model, in eval mode.

    float64 stays float64 and all else becomes float32, which holds half precision exactly. Dropout
    is taken over where theirs is the same everywhere, else it is 0.
    ValueError names the first thing that has no counterpart here.
    """
    config = hf_model.config
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{config.model_type} is an encoder-decoder, and this is a decoder alone")
    family = family_of(config.model_type)
    if type(hf_model).__name__ != (name := class_name(family)):
        raise ValueError(f"a {type(hf_model).__name__} has no counterpart here; wanted is {name}")
    weights = tensors_of(hf_model)
    double = next(iter(weights.values())).dtype == torch.float64
    typed = [*family.read(config), f"trainer.precision={'fp64' if double else 'fp32'}"]
    dropouts = {getattr(config, key) for key in family.dropouts}
    typed += [f"model.dropout={dropouts.pop()}"] if len(dropouts) == 1 else []
    model = build_uninitialized(compose(typed), config.vocab_size)
    ours = dict(model.named_parameters())
    with torch.no_grad():
        for key, tensor in our_tensors(family.model_type, weights, ours, model.config).items():
            ours[key].copy_(tensor)
    return model.eval()


def load_hf(folder: Path) -> Transformer:
    """Returns our model of a folder that transformers wrote, on the CPU, in eval mode.

    Reads safetensors alone, and no code. ValueError, one line, says what the folder lacks.
    """
    import transformers

    transformers.utils.logging.disable_progress_bar()
    try:
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, dtype="auto"
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(" ".join(str(error).split())) from None
    return from_hf(theirs)


def to_hf(model: Transformer, model_type: str | None = None) -> Any:
    """A transformers model with our weights, in eval mode: of the family `model_type`, or of the
    first that can be the same function. Dropout is written where the family has it everywhere.

    A scale of the logits that no family has goes into the weights of a separate head.
    ValueError names the keys that no family of transformers can say, and what is there.
    """
    import transformers

    if not model.config:
        raise ValueError("the model carries no config: only what build_model built can be exported")
    family, config, scale = their_config(model.config, model.vocab_size, model_type)
    ours: dict[str, Tensor] = dict(model.named_parameters())
    if scale != 1:
        ours |= _fold(scale, ours)
    for key in family.dropouts:
        setattr(config, key, model.config.model.dropout)
    theirs = transformers.AutoModelForCausalLM.from_config(config)
    theirs = theirs.to(next(iter(ours.values())).dtype)
    there = tensors_of(theirs)
    with torch.no_grad():
        for name, tensor in their_tensors(family.model_type, ours, model.config):
            parameter = there.pop(name)
            assert tensor.shape == parameter.shape, name
            parameter.copy_(tensor)
    assert not there, sorted(there)
    return theirs.eval()


def write_theirs(run: Path, model: Transformer, spelled: Any, out: Path) -> str:
    """Writes a model of transformers with the weights of a run's model, and its tokenizer. Returns
    the name of its class."""
    theirs = to_hf(model)
    for settings in (theirs.config, theirs.generation_config):
        settings.eos_token_id, settings.pad_token_id = spelled.eos_token_id, spelled.pad_token_id
    theirs.save_pretrained(out)
    spelled.save_pretrained(out)
    return type(theirs).__name__


def their_config(
    config: Config, vocab_size: int, model_type: str | None = None
) -> tuple[Family, Any, float]:
    """Returns the family of `to_hf`, its config, and the scale of the logits that the weights of
    the head are to hold. Needs no weights. ValueError as `to_hf`."""
    facts = facts_of(config, vocab_size)
    families = FAMILIES if model_type is None else [family_of(model_type)]
    try:
        return *_choose_family(families, facts), 1.0
    except ValueError:
        if not isinstance(scale := facts["architecture.logit_scale"], float) or scale == 1:
            raise
        return *_choose_family(families, {**facts, **_FOLDED}), scale


# The facts of the same function where a separate head holds the scale of the logits.
_FOLDED: Facts = {"architecture.logit_scale": 1.0, "architecture.tied": False}


def _fold(scale: float, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weight of a head, and its bias, that holds the scale of the logits."""
    head = {name: ours[name] for name in ("head.weight", "head.bias") if name in ours}
    head.setdefault("head.weight", ours["embedding.weight"])
    return {name: tensor.detach() * scale for name, tensor in head.items()}


def _choose_family(families: Sequence[Family], facts: Facts) -> tuple[Family, Any]:
    """The first family whose config says all the facts, and that config."""
    wrong: dict[str, list[str]] = {}
    for family in families:
        config, wrong[family.model_type] = _write_config(family, facts)
        if not wrong[family.model_type]:
            return family, config
    fewest = min(wrong, key=lambda model_type: len(wrong[model_type]))
    lines = [*dict.fromkeys(wrong[fewest])]
    more = f"; and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
    least = "; no other family differs in fewer" if len(wrong) > 1 else ""
    raise ValueError(f"transformers has no such model: {'; '.join(lines[:_NAMED])}{more}{least}")


_NAMED = 5  # differences in one line


def _write_config(family: Family, facts: Facts) -> tuple[Any, list[str]]:
    """The family's config for the facts, and a line for each fact that it cannot say. A fact that
    ours does not have follows from another one."""
    import transformers
    from huggingface_hub.errors import StrictDataclassError

    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    try:
        config = transformers.AutoConfig.for_model(
            family.model_type, **{**family.write(facts), **ends}
        )
        back = family.facts(config)
    except (StrictDataclassError, ValueError, ZeroDivisionError) as error:
        # The config class checks its values: sizes that do not divide, or a number that is a word.
        return None, [" ".join(str(error).split())] * len(facts)
    return config, [
        f"{key}={format_fact(fact)}, where {family.model_type} has {format_fact(back.get(key))}"
        for key in differences(facts, back)
        if (fact := facts.get(key)) is not None
    ]


def family_of(model_type: str) -> Family:
    if model_type in ELSEWHERE:
        raise ValueError(f"{model_type} has no counterpart here: {ELSEWHERE[model_type]}")
    if model_type not in BY_NAME:
        from transformers import CONFIG_MAPPING

        theirs = model_type in CONFIG_MAPPING  # another family is not a misspelling
        near = did_you_mean([] if theirs else nearest(model_type, BY_NAME, cutoff=0.8))
        raise ValueError(f"{near}there is no family {model_type!r}; there are {', '.join(BY_NAME)}")
    return BY_NAME[model_type]


def class_name(family: Family) -> str:
    """The family's causal language model, which carries the head."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name: str = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family.model_type]
    return name
