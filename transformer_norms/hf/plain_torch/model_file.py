"""Writes model.py: the config, the classes of the variant, and the model, for torch alone and for
transformers."""

import re
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jinja2

from transformer_norms.config.building import build_model
from transformer_norms.config.chosen_files import default_choices
from transformer_norms.config.tree import Config
from transformer_norms.explain.layout import blocks_text
from transformer_norms.hf.plain_torch.copying import wrapped
from transformer_norms.hf.plain_torch.module_classes import BlockText, model_class
from transformer_norms.hf.plain_torch.norm_classes import NormClasses
from transformer_norms.model.placement import read_placement
from transformer_norms.model.sizes import OF_BLOCKS
from transformer_norms.norms import nothing
from transformer_norms.norms.parts.affine import wide

FOLDER = jinja2.FileSystemLoader(Path(__file__).parent)
TEMPLATES = jinja2.Environment(loader=FOLDER, trim_blocks=True, lstrip_blocks=True,
                               keep_trailing_newline=True)  # fmt: skip
SIZES = ("width", "depth", "heads", "kv_heads", "head_dim", "mlp_width", "context")
# What is written: these types, and any value of these keys. All other keys have their default.
TYPES = {"position": ("rope", "learned", "none"), "attention": ("softmax",),
         "mlp": ("plain", "gated")}  # fmt: skip
KEYS = ("bias tied embed_scale embed_scale_order attention_scale logit_scale qk_norm_order "
        "attention_cap rope_base rope_interleaved").split()  # fmt: skip


def check_written(config: Config) -> None:
    """ValueError where a run has what no norm and no placement brings. It names the key."""
    bases, sizes = {own.rope_base for own in config.blocks}, config.model
    others = {f"{axis}={getattr(config.choices, axis)}": getattr(config, axis)["type"] not in types
              for axis, types in TYPES.items()}  # fmt: skip
    others |= {f"model.{key}": isinstance(getattr(sizes, key), tuple) for key in OF_BLOCKS}
    others |= {"model.dropout": sizes.dropout > 0, "architecture.rope_base": len(bases) > 1,
               "position.scaling": config.position.get("scaling", "none") != "none"}  # fmt: skip
    for key, default in default_choices().items():
        group, _, name = key.partition(".")
        if group == "architecture" and name not in KEYS:
            others[key] = getattr(config.architecture, name) != default
    for key in (key for key, other in others.items() if other):
        raise ValueError(f"{key} is not written as plain torch; `export` without --torch may have "
                         "a family of transformers for it")  # fmt: skip


class ModelFile:
    """The file of a config. `source()` is its text, `settings` are then the values of its config.
    Raises ValueError where it cannot be written."""

    def __init__(self, config: Config, vocab_size: int) -> None:
        check_written(config)
        self.config, self.model = config, build_model(config, vocab_size)
        self.placement = read_placement(config.placement)
        self.stream = "x" if self.model.enter is nothing else "streams"
        self.settings: dict[str, Any] = {"vocab_size": vocab_size}
        self.settings |= {key: getattr(config.model, key) for key in SIZES}
        self.blocks: list[BlockText] = []
        self.given: list[str] = []  # what blocks take besides the stream
        self.differing = set[str]()  # the numbers in which blocks differ
        self.indexed = False  # whether blocks take their number
        for _ in range(2):  # first to know the numbers of all blocks, and what they take
            self.write()

    def write(self) -> None:
        self.numbers: dict[str, dict[int | None, Any]] = defaultdict(dict)  # of blocks, by name
        # By kind, docstring and text: the name, and the blocks that have the class.
        self.classes: dict[tuple[str, str, str], tuple[str, list[Any]]] = {}
        self.norms = NormClasses(self.config)
        self.copy = self.norms.copies.name
        self.copy(wide)
        self.whole = model_class(self, self.model)
        lines = "\n".join(line for block in self.blocks for line in block.lines)
        self.given = [name for name in ("x0", "angles") if re.search(rf"\b{name}\b", lines)]
        several = {name: {*map(str, own.values())} for name, own in self.numbers.items()}
        self.differing = {name for name, each in several.items() if len(each) > 1}
        indexed = any(block.given != "config" for block in self.blocks)
        self.indexed = indexed or bool(self.differing - {"kinds"})

    def number(self, name: str, value: Any, i: int | None = None) -> str:
        """Returns the text of a number, a field of the config. Where blocks differ in it, it is a
        tuple."""
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
        kinds, classes = [kind for kind, *_ in self.classes], []
        for (kind, document, text), (name, blocks) in self.classes.items():
            where = f"# {blocks_text(blocks)}\n" * (kinds.count(kind) > 1)
            head = f'{where}class {name}(nn.Module):\n    """{wrapped(document)}"""'
            classes.append(f"{head}\n\n{text}")
        copied = [*self.norms.copies.texts.values(), *self.norms.classes.values()]
        text = TEMPLATES.get_template("model.py.jinja").render(
            config=self.config, settings=self.settings,
            copied="\n\n\n".join(copied), classes="\n\n\n".join(classes),
        )  # fmt: skip
        if find_spec("ruff") is None:
            raise ImportError("ruff, which formats model.py, is not installed: pip install ruff")
        text = re.sub(r"\b(\d+(?:\.\d+)?e-)0(\d)\b", r"\1\2", text)
        command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "88", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert not done.returncode, f"{done.stderr}{text}"
        return done.stdout
