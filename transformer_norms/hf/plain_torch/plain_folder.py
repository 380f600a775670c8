"""Writes a run as a folder: model.py, its weights, its config and tokenizer for transformers, and a
card. The file is compared with the run before it is left there."""

import json
import re
import subprocess
import sys
from collections import defaultdict
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import jinja2
import torch
from safetensors.torch import save_file

from transformer_norms.config.building import build_model
from transformer_norms.config.chosen_files import default_choices
from transformer_norms.config.tree import Config
from transformer_norms.explain.anatomy import Anatomy
from transformer_norms.explain.explanation import Explanation, deviations, equations
from transformer_norms.explain.layout import blocks_text
from transformer_norms.explain.text import explanation_text
from transformer_norms.hf.plain_torch.module_classes import model_class
from transformer_norms.hf.plain_torch.plain_sources import PlainSources, wrapped
from transformer_norms.kinds import plain
from transformer_norms.model.placement import read_placement
from transformer_norms.model.sizes import OF_BLOCKS
from transformer_norms.model.transformer import Transformer
from transformer_norms.norms import nothing
from transformer_norms.norms.parts.affine import wide
from transformer_norms.report.paper.citations import bibliography, choices_of
from transformer_norms.run.summary import read_summary

FOLDER = jinja2.FileSystemLoader(Path(__file__).parent)
TEMPLATES = jinja2.Environment(loader=FOLDER, trim_blocks=True, lstrip_blocks=True,
                               keep_trailing_newline=True)  # fmt: skip
TOLERANCE = 1e-10  # of the largest logit, in float64
TOKENS = 64  # of each row that both are compared on, at most
CLASS = "VariantForCausalLM"
SIZES = ("width", "depth", "heads", "kv_heads", "head_dim", "mlp_width", "context")
# What is written: these types, and any value of these keys. All other keys have their default.
TYPES = {"position": ("rope", "learned", "none"), "attention": ("softmax",),
         "mlp": ("plain", "gated")}  # fmt: skip
KEYS = ("bias tied embed_scale embed_scale_order attention_scale logit_scale qk_norm_order "
        "attention_cap rope_base rope_interleaved").split()  # fmt: skip


def check_written(config: Config) -> None:
    """ValueError where a run has what no norm and no placement brings. It names the key."""
    others = {f"{axis}={getattr(config.choices, axis)}": getattr(config, axis)["type"] not in types
              for axis, types in TYPES.items()}  # fmt: skip
    others |= {f"model.{key}": isinstance(getattr(config.model, key), tuple) for key in OF_BLOCKS}
    others |= {"architecture.rope_base": len({own.rope_base for own in config.blocks}) > 1,
               "position.scaling": config.position.get("scaling", "none") != "none"}  # fmt: skip
    for key, default in default_choices().items():
        group, _, name = key.partition(".")
        if group == "architecture" and name not in KEYS:
            others[key] = getattr(config.architecture, name) != default
    for key in (key for key, other in others.items() if other):
        raise ValueError(f"{key} is not written as plain torch; `export` without --torch may have "
                         "a family of transformers for it")  # fmt: skip


class ModelFile:
    """The file of a config: `source()` is its text, and writes `settings`. May raise ValueError."""

    def __init__(self, config: Config, vocab_size: int) -> None:
        check_written(config)
        self.config, self.model = config, build_model(config, vocab_size)
        self.placement = read_placement(config.placement)
        self.stream = "x" if self.model.enter is nothing else "streams"
        self.settings: dict[str, Any] = {"vocab_size": vocab_size}
        self.settings |= {key: getattr(config.model, key) for key in SIZES}
        self.given = list[str]()  # what blocks take besides the stream
        self.differing = set[str]()  # the numbers in which blocks differ
        for _ in range(2):  # first to know the numbers of all blocks, and what they take
            self.write()

    def write(self) -> None:
        self.numbers: dict[str, dict[int | None, Any]] = defaultdict(dict)  # of blocks, by name
        # By kind, docstring and text: the name, and the blocks that have the class.
        self.classes: dict[tuple[str, str, str], tuple[str, list[Any]]] = {}
        self.sources = PlainSources(self.config)
        self.sources.copy(wide)
        self.whole, blocks = model_class(self, self.model)
        lines = "\n".join(line for block in blocks for line in block.lines)
        self.given = [name for name in ("x0", "angles") if re.search(rf"\b{name}\b", lines)]
        each = self.numbers.items()
        self.differing = {name for name, own in each if len({*map(str, own.values())}) > 1}

    def number(self, name: str, value: Any, i: int | None = None) -> str:
        """Returns the text of a number: a field of the config, a tuple where blocks differ."""
        assert self.numbers[name].setdefault(i, value) == value, name
        return f"config.{name}" + "[i]" * (name in self.differing)

    def document(self, i: int) -> str:
        """Returns the equations of a block."""
        equations = self.placement.equation(i, self.config.model.depth)
        texts = {name: text for name, text in equations.items() if name != "end"}
        if len({*texts.values()}) > 1:
            return "\n".join(f"{name}: {text}" for name, text in texts.items())
        return [*texts.values()][0] + ", where f is attention and then mlp" * (len(texts) > 1)

    def tensors(self) -> dict[str, str]:
        """Returns for each tensor of the file its name in a checkpoint of the run."""
        saved = {id(one): name for name, one in self.model.state_dict(keep_vars=True).items()}
        return {name: saved[id(one)] for name, one in self.whole.tensors().items()}

    def source(self) -> str:
        """Returns the text of model.py as black writes it."""
        for name, own in self.numbers.items():
            each = tuple(map(own.get, range(self.config.model.depth)))
            self.settings[name] = each if name in self.differing else next(iter(own.values()))
        template = TEMPLATES.get_template("model.py.jinja")
        text = template.render(file=self, wrapped=wrapped, blocks_text=blocks_text)
        text = re.sub(r"\b(\d+(?:\.\d+)?e-)0(\d)\b", r"\1\2", text)
        command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "88", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ImportError(f"ruff formats model.py (pip install ruff): {done.stderr.strip()}")
        return done.stdout


def write_folder(run: Path, model: Transformer, spelled: Any, out: Path) -> str:
    """Writes the model of a run and its tokenizer `spelled` into a folder. Returns the name of the
    class for transformers. Raises ValueError where plain torch is not exact."""
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
        raise ValueError(f"plain torch is not exact: logits differ by {far:.2g} of the largest")
    return CLASS


def difference(path: Path, weights: dict[str, Any], model: Transformer) -> float:
    """Returns the largest difference of logits, over the largest logit, in float64."""
    spec: Any = spec_from_file_location("model", path)
    spec.loader.exec_module(module := module_from_spec(spec))
    written = module.Model(module.Config()).double().eval()
    written.load_state_dict({name: weight.double() for name, weight in weights.items()})
    tokens = torch.arange(2 * min(model.context, TOKENS)).square().view(2, -1) % model.vocab_size
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
