"""Writes a run as a folder: model.py, its weights, its config and tokenizer for transformers, and a
card. The file is compared with the run before it is left there."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from transformer_norms.config.tree import Config
from transformer_norms.explain.anatomy import Anatomy
from transformer_norms.explain.explanation import Explanation, deviations, equations
from transformer_norms.explain.text import explanation_text
from transformer_norms.hf.plain_torch.model_file import TEMPLATES, ModelFile
from transformer_norms.kinds import plain
from transformer_norms.model.transformer import Transformer
from transformer_norms.report.paper.citations import bibliography, choices_of
from transformer_norms.run.summary import read_summary

TOLERANCE = 1e-10  # of the largest logit, in float64
TOKENS = 64  # of each row that both are compared on, at most
CLASS = "VariantForCausalLM"


def write_folder(run: Path, model: Transformer, spelled: Any, out: Path) -> str:
    """Writes the model of a run, with its tokenizer `spelled` for transformers, into a folder.
    Returns the name of the class for transformers. Raises ValueError where plain torch is not
    exact."""
    file = ModelFile(model.config, model.vocab_size)
    source, state = file.source(), model.state_dict()
    weights = {name: state[saved].contiguous() for name, saved in file.tensors().items()}
    ends = {key: getattr(spelled, key) for key in ("eos_token_id", "pad_token_id")}
    classes = {"AutoConfig": "model.VariantConfig", "AutoModelForCausalLM": f"model.{CLASS}"}
    dtype = str(model.embedding.weight.dtype).removeprefix("torch.")
    config = {"architectures": [CLASS], "auto_map": classes, "dtype": dtype, "use_cache": False,
              "model_type": "transformer_norms_variant", "tie_word_embeddings": False,
              **ends, **file.settings}  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    (out / "model.py").write_text(source, encoding="utf-8")
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (out / "README.md").write_text(card(run, model.config, model.vocab_size), encoding="utf-8")
    spelled.save_pretrained(out)
    if not (far := difference(out / "model.py", weights, model)) <= TOLERANCE:
        raise ValueError(
            f"plain torch is not exact here: logits differ by {far:.2g} of the largest"
        )
    return CLASS


def difference(path: Path, weights: dict[str, Any], model: Transformer) -> float:
    """Returns the largest difference of logits, over the largest logit, in float64."""
    spec: Any = spec_from_file_location("model", path)
    spec.loader.exec_module(module := module_from_spec(spec))
    written = module.Model(module.Config()).double().eval()
    written.load_state_dict({name: weight.double() for name, weight in weights.items()})
    generator = torch.Generator().manual_seed(0)
    shape = 2, min(model.context, TOKENS)
    tokens = torch.randint(model.vocab_size, shape, generator=generator)
    with torch.no_grad():
        found, expected = written(tokens), model.double().eval()(tokens)
    return float((found - expected).abs().max() / expected.abs().max())


def card(run: Path, config: Config, vocab_size: int) -> str:
    """Returns the card of a run: equations, start, losses, data, training, licence, citation."""
    anatomy, summary, values = Anatomy(config, vocab_size), read_summary(run), plain(config)
    variant = Explanation(anatomy, [equations(anatomy), deviations(anatomy)])
    return TEMPLATES.get_template("card.md.jinja").render(
        config=values, run=run.name, explanation=explanation_text(variant), summary=summary,
        lines=summary.data.reference_lines() if summary else {},
        constraint=config.placement.get("weight_constraint", "none"),
        bibliography=bibliography(choices_of(values)),
    )  # fmt: skip
