"""Writes model.py: the config, the classes of the variant, and the model, for torch alone and for
transformers."""

import ast
import inspect
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jinja2
from torch import Tensor, nn

from transformer_norms.config.building import build_model
from transformer_norms.config.tree import Config
from transformer_norms.explain.layout import blocks_text
from transformer_norms.formula import Formula
from transformer_norms.hf.plain_torch.copying import TORCHS, tree_of
from transformer_norms.hf.plain_torch.module_classes import Block, Part, signature
from transformer_norms.hf.plain_torch.norm_classes import Norms
from transformer_norms.model.attentions.heads import ForwardState
from transformer_norms.model.attentions.softmax import Sinks
from transformer_norms.model.coefficient import Scaled, Times
from transformer_norms.model.mlp import ACTIVATIONS
from transformer_norms.model.placement import read_placement
from transformer_norms.model.position import (
    SCALINGS,
    LearnedPositions,
    Rotary,
    Sinusoidal,
    position_first,
)
from transformer_norms.model.sites import place_of
from transformer_norms.names import parameters
from transformer_norms.norms import nothing

TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
)
# The sizes of tensors: the first formula that is the number is written.
SIZES = (
    "width, mlp_width, vocab_size, heads * head_dim, kv_heads * head_dim, head_dim, "
    "kv_heads * (head_dim - rope_dim), rope_dim, heads * value_dim, kv_heads * value_dim, "
    "value_dim, q_rank, kv_rank, rank, heads, kv_heads"
).split(", ")
OF_HEADS = sorted(SIZES, key=lambda formula: "head" not in formula)
MODEL = ("vocab_size", "width", "depth", "heads", "mlp_width", "context")
GENERAL = ("width", "mlp_width", "vocab_size", "heads", "rank")  # not of one block
OF_HEAD_NAMES = ("query", "key", "value", "value_embedding", "q", "k", "v", "head_norm", "ctx")


class ModelFile:
    """The file of a config. `model` is a model as it starts, whose tensors have the names
    `tensors()` in the file. ValueError where something cannot be written."""

    def __init__(self, config: Config, vocab_size: int) -> None:
        self.config, self.model = config, build_model(config, vocab_size)
        self.saved_names = {
            id(t): name for name, t in self.model.state_dict(keep_vars=True).items()
        }
        self.norms, self.uses = Norms(config), set[str]()
        self.fields: dict[str, dict[int | None, Any]] = defaultdict(dict)
        depth, self.placement = config.model.depth, read_placement(config.placement)
        self.plans = {i: self.placement.plans(i, depth) for i in range(depth)}
        self.equations = [self.placement.equation(i, depth) for i in range(depth)]
        self.classes: dict[str, list[int]] = {}  # for a text, the blocks that have the class
        self.names: dict[str, str] = {}  # for a text, the name of the class
        for name in MODEL:
            self.setting(name, self.values(None)[name], None)
        self.complete()
        self.blocks = [Block(self, one, i) for i, one in enumerate(self.model.blocks)]
        self.whole = Whole(self, self.model)
        self.kinds = [self.class_of(block) for block in self.blocks]

    def complete(self) -> None:
        """Gives a block whose factor is 1 that factor, where other blocks of the same equation have
        another number: then they share a class."""
        blocks: Any = self.model.blocks
        for kind in ("attention", "mlp"):
            own = [getattr(block, kind) for block in blocks]
            for slot in ("pre", "skip", "branch"):
                parts = [getattr(one, slot) for one in own]
                scales = [one.scale if isinstance(one, Scaled) else one for one in parts]
                for one, part, texts in zip(own, parts, self.equations, strict=True):
                    alike = [
                        scale
                        for scale, same in zip(scales, self.equations, strict=True)
                        if same == texts
                    ]
                    if any(isinstance(scale, Times) for scale in alike):
                        if slot == "pre" and not isinstance(part, Scaled):
                            one.pre = Scaled(part, Times(1.0))
                        elif part is nothing:
                            setattr(one, slot, Times(1.0))

    def tensors(self) -> dict[str, str]:
        """Returns the name in a run's checkpoint of each tensor of the file."""
        return {name: self.saved_names[id(tensor)] for name, tensor in self.whole.tensors().items()}

    # -------------------------------------------------------------------------- values of the config

    def setting(self, name: str, value: Any, i: int | None) -> str:
        """Returns the text of a value of the config. Where blocks differ in it, it is a tuple."""
        assert self.fields[name].setdefault(i, value) == value, name
        return f"config.{name}" + ("" if i is None else "@")

    def values(self, i: int | None) -> dict[str, Any]:
        """Returns the sizes of a block by name."""
        own = self.config.blocks[i or 0]
        ranks = [spec["rank"] for spec in self.placement.learned.values() if "rank" in spec]
        named = {
            name: getattr(own, name) for name in ("q_rank", "kv_rank", "rope_dim", "value_dim")
        }
        sizes = {"vocab_size": self.model.vocab_size, **vars(own.sizes), **named}
        return {**sizes, "rank": max(ranks, default=0)}

    def size(self, i: int | None, number: int, heads: bool = False) -> str:
        """Returns a formula of sizes that is the number; with `heads`, rather one of heads."""
        values = self.values(i)
        for formula in OF_HEADS if heads else SIZES:
            if number > 1 and Formula(formula)(values) == number:
                return re.sub(r"[a-z]\w*", lambda match: self.setting(
                    match[0], values[match[0]], None if match[0] in GENERAL else i), formula)  # fmt: skip
        return str(number)

    def varies(self, name: str) -> bool:
        return len({str(value) for value in self.fields[name].values()}) > 1

    # -------------------------------------------------------------------------- what is built, how

    def build(self, part: Part, name: str, thing: Any) -> str:
        """Returns the text that builds an attribute of a class."""
        i, heads = part.i, name in OF_HEAD_NAMES
        if name in part.parts:
            return f"{self.class_of(part.parts[name])}(config@@)"
        if hasattr(thing, "norm_place"):
            return self.norm(i, thing)
        if isinstance(thing, nn.Parameter):
            start, inner = float(thing.detach().flatten()[0]), type(part).__name__ == "Part"
            shape = ", ".join(self.size(i, n, inner and thing.dim() > 1) for n in thing.shape)
            if start in (0, 1):
                return f"nn.Parameter(torch.{'ones' if start else 'zeros'}({shape}))"
            value = self.setting(f"{name}_start", float(f"{start:.7g}"), i)
            return f"nn.Parameter(torch.full(({shape}{',' * (thing.dim() == 1)}), {value}))"
        if isinstance(thing, nn.Dropout):
            return f"nn.Dropout({self.setting('dropout', thing.p, None)})"
        if type(thing) in TORCHS:
            rows, columns = thing.weight.shape
            sizes = self.size(i, columns, name == "output"), self.size(i, rows, heads)
            if isinstance(thing, nn.Embedding):
                rows_text = "config.context" if name == "positions" else "config.vocab_size"
                return f"nn.Embedding({rows_text}, {self.size(i, columns, heads)})"
            return f"nn.Linear({', '.join(sizes)}, bias={thing.bias is not None})"
        if isinstance(thing, (int, float, tuple)) or thing is None:
            return self.number(part, name, thing)
        takes = parameters(type(thing)).items()
        words = {key: (one, self.argument(i, name, thing, key)) for key, one in takes
                 if key not in ("device", "dtype") and one.kind is not one.VAR_POSITIONAL}  # fmt: skip
        texts = [f"{key}={text}" if one.kind is one.KEYWORD_ONLY else text
                 for key, (one, text) in words.items()]  # fmt: skip
        return f"{self.copy(type(thing))}({', '.join(texts)})"

    def argument(self, i: int | None, name: str, thing: Any, key: str) -> str:
        """Returns an argument of the class of a connection, or of a part of attention."""
        connected, joins = ".connections." in type(thing).__module__, self.placement.joins
        if connected and key in self.placement.connection:
            return self.setting(f"connection_{key}", self.placement.connection[key], None)
        second = " + 1" if name.startswith("mlp") else ""
        match key:
            case "width" | "in_features":
                return self.size(i, getattr(thing, "in_features", self.config.model.width))
            case "norm" if connected:
                return self.norms.maker()
            case "norm":
                return self.norm(i, thing.norm)
            case "norms":
                count = self.size(i, len(thing.heads), True)
                return f"{self.norm(i, thing.heads[0])} for _ in range({count})"
            case "final":
                return "nn.Identity()" if thing.norm is nothing else self.norm(None, thing.norm)
            case "activation":
                return self.copy(ACTIVATIONS[self.config.mlp.activation])
            case "share":
                assert i is not None
                return self.setting("sparsity", self.config.blocks[i].activation_sparsity, i)
            case "each":
                return self.size(i, thing.out_features // thing.heads, True)
            case "channels":
                return str(thing.smear_gate.in_features)
            case "bias":
                return str(thing.bias is not None)
        fixed = {"index": f"2 * i{second}" if len(joins) > 1 else "i", "l": "i + 1", "vocab_size": "config.vocab_size",
                 "count": "2 * config.depth" if len(joins) > 1 else "config.depth", "depth": "config.depth"}  # fmt: skip
        if key in fixed:
            return fixed[key]
        value = getattr(thing, key)
        if key in ("heads", "out_features"):
            return self.size(i, value, True)
        return self.setting(f"{name}_{key}", value, i)

    def copy(self, thing: Any) -> str:
        return self.norms.copies.name(thing)

    def norm(self, i: int | None, norm: nn.Module) -> str:
        place = place_of(norm)
        return self.norms.build(norm, self.size(i, place.width, place.site in OF_HEAD_NAMES))

    def number(self, part: Part, name: str, value: Any) -> str:
        kind, own = type(part.module).__name__, self.values(part.i)
        if name == "groups":
            return f"config.heads // {self.setting('kv_heads', own['kv_heads'], part.i)}"
        if (
            name == "kv_heads"
            and isinstance(self.config.model.kv_heads, int)
            and value == own["heads"]
        ):
            name = "heads"
        if name == "index" or name in own:
            return (
                "i"
                if name == "index"
                else self.setting(name, own.get(name), None if name in GENERAL else part.i)
            )
        prefix = {"Attention": "attention_", "LowRank": "low_rank_", "ValueMix": "value_"}.get(
            kind, ""
        )
        return self.setting(f"{prefix}{name}", value, part.i)

    # ---------------------------------------------------------------------- attention's functions

    def attending(self, attend: Any) -> dict[str, Any]:
        """Returns what the function of queries, keys and values takes besides the scale."""
        blocks: Any = self.model.blocks
        every = [block.attention.f.attend for block in blocks]
        own = {"window": attend.sliding_window, "chunk": attend.attention_chunk}
        own = {
            key: value
            for key, value in own.items()
            if any(
                value != getattr(one, {"window": "sliding_window", "chunk": "attention_chunk"}[key])
                for one in every
            )
            or value
        }
        if attend.pattern.bias is not None:
            own["slopes"] = tuple(attend.pattern.bias.slopes)
        own |= {"cap": attend.cap} if attend.cap is not None else {}
        own |= {"sinks": attend.sinks} if isinstance(attend, Sinks) else {}
        self.uses |= own.keys() | ({"dropout"} if attend.dropout else set())
        return own

    def angles_of(self, part: Part, which: int, angles: str) -> str:
        """Returns the angles of a block."""
        position: Any = self.model.position
        if len(position.distinct) == 1:
            return angles
        return f"{angles}[{part.own('rope', which)}]"

    def rope(self) -> Mapping[str, Any] | None:
        """Returns what makes the angles: the arguments of each turn, and the call that scales."""
        position: Any = self.model.position
        if not isinstance(position, Rotary) or not position.distinct:
            return None
        turns = [
            (base, 2 * count, 2 * span, factor) for base, count, span, factor in position.distinct
        ]
        scaled = [
            size
            for size, turn in zip(position.attention_factors, turns, strict=True)
            if turn[3] != 1
        ]
        takes = ["base", "dims"]
        takes += ["whole"] * any(turn[1] != turn[2] for turn in turns) + ["factor"] * bool(scaled)
        numbers = [
            tuple({"base": a, "dims": b, "whole": c, "factor": d}[key] for key in takes)
            for a, b, c, d in turns
        ]
        if len(turns) == 1:
            texts = [
                self.setting(f"rope_{key}", one, None)
                for key, one in zip(takes, numbers[0], strict=True)
            ]
            made = f"rotary({', '.join(['x', *texts])})"
        else:
            made = (
                f"[rotary(x, *turn) for turn in {self.setting('rope_turns', tuple(numbers), None)}]"
            )
        call = ""
        if scaled:
            scaling = {**self.config.position["scaling"], "attention_factor": scaled[0]}
            if len({*scaled}) > 1:
                raise ValueError("position.scaling: its attention_factor differs between blocks")
            names = parameters(function := SCALINGS[scaling["type"]])
            words = [
                f"{key}={scaling[key]!r}" for key in names if key in scaling and key != "factor"
            ]
            words += [f"{key}={key}" for key in ("base", "dims", "factor") if key in names]
            call = f"{self.copy(function)}(powers, {', '.join(words)})"
        return {
            "takes": takes,
            "made": made.replace("config.", "self.config."),
            "call": call,
            "some": len(scaled) < len(turns),
        }

    # ------------------------------------------------------------------------------------- classes

    def class_of(self, part: Part) -> str:
        """Returns the name of a part's class. Parts with the same text share it."""
        text = part.text()
        kind = {"Part": type(part.module).__name__.replace("Gated", "")}.get(
            type(part).__name__, "Block"
        )
        if text not in self.names:
            alike = [one for one in self.names.values() if re.fullmatch(rf"{kind}\d*", one)]
            self.names[text] = f"{kind}{len(alike) + 1 if alike else ''}"
        self.classes.setdefault(text, []).append(part.i or 0)
        return self.names[text]

    def document(self, part: Part) -> str:
        kind = type(part.module).__name__
        if isinstance(part, Block) and part.i is not None:
            texts = {name: text for name, text in self.equations[part.i].items() if name != "end"}
            first = next(iter(texts.values()))
            if len(set(texts.values())) == 1:
                return first + ", where f is attention and then mlp" * (len(texts) > 1) + "##"
            return "\n".join(f"{name}: {text}" for name, text in texts.items()) + "##\n"
        words = {"Attention": "Causal self-attention", "MLP": "A network for each token",
                 "GatedMLP": "A gated network for each token, Shazeer 2020, arXiv:2002.05202"}  # fmt: skip
        return (
            words.get(kind, (inspect.getdoc(type(part.module)) or "").partition("\n\n")[0])
            + "##"
            + "." * (kind in words)
        )

    def texts(self) -> tuple[list[str], str, set[str]]:
        """Returns the classes, the lines that build the model, and the classes that take the number
        of a block."""
        end = "\n".join(
            f"self.{name} = {self.build(self.whole, name, thing)}"
            for name, thing in self.whole.attributes.items()
        )
        texts = {}
        for text, name in self.names.items():
            same = [
                one
                for one in self.names.values()
                if re.sub(r"\d", "", one) == re.sub(r"\d", "", name)
            ]
            where = f", in {blocks_text(sorted({*self.classes[text]}))}" if len(same) > 1 else ""
            texts[name] = re.sub("##", where, text).replace("class NAME", f"class {name}")
        fill = lambda text: re.sub(
            r"config\.(\w+)@(?!@)", lambda m: f"config.{m[1]}" + "[i]" * self.varies(m[1]), text
        )  # noqa: E731
        texts, numbered = {name: fill(text) for name, text in texts.items()}, set[str]()
        while more := {name for name, text in texts.items() if name not in numbered and (
                re.search(r"\bi\b", text.partition("__init__")[2].partition("def forward")[0].replace("__init__", ""))
                or any(f"{one}(config@@)" in text for one in numbered))}:  # fmt: skip
            numbered |= more
        if numbered & {*self.kinds}:
            numbered |= {*self.kinds}

        def called(text: str) -> str:
            return re.sub(
                r"(\w+)\(config@@\)", lambda m: f"{m[1]}(config{', i' * (m[1] in numbered)})", text
            )

        bodies = [
            called(text.replace("self, config@@", f"self, config{', i' * (name in numbered)}"))
            for name, text in texts.items()
        ]
        return bodies, called(fill(end)), numbered

    def source(self) -> str:
        """Returns the text of model.py."""
        rope, kinds = self.rope(), list(dict.fromkeys(self.kinds))
        if rope:
            self.copy(sys.modules["transformer_norms.norms.parts.affine"].wide)
        for i, one in enumerate(self.kinds):
            if len(kinds) > 1:
                self.setting("kinds", kinds.index(one), i)
        classes, end, numbered = self.texts()
        depth = self.config.model.depth
        fields = {name: tuple(values.get(i) for i in range(depth)) if self.varies(name) else next(iter(values.values()))
                  for name, values in self.fields.items()}  # fmt: skip
        self.settings = fields
        forward = [
            line.replace("ANGLES", rope["made"] if rope else "") for line in self.whole.lines
        ]
        text = TEMPLATES.get_template("model.py.jinja").render(
            config=self.config, fields=fields, copies=self.norms.copies.texts, norms=self.norms.texts,
            classes=classes, end=end, uses=self.uses, kinds=kinds, rope=rope, forward=forward,
            given="config, i" if numbered & {*kinds} else "config",
        )  # fmt: skip
        return formatted(text)


class Whole(Part):
    """The model around the blocks."""

    def write(self) -> None:
        model: Any = self.module
        self.lines = ["x = self.embedding(tokens)"]
        self.attributes["embedding"] = model.embedding

        def then(name: str, thing: Any, *given: str) -> None:
            if (text := self.call(name, thing, *given)) != given[0]:
                self.lines.append(f"{given[0]} = {text}")

        then("row_norm", model.rows, "x")
        added = {LearnedPositions: "positions", Sinusoidal: "sinusoids"}.get(
            type(model.position), ""
        )
        self.file.uses.add(added)
        if added == "positions":
            self.attributes["positions"] = model.position.position
        add = {"": [], "positions": ["x = x + self.positions.weight[: x.shape[1]]"],
               "sinusoids": ["x = x + sinusoids(x)"]}[added]  # fmt: skip
        first = model.enter_positions is position_first
        self.lines += add * first
        then("embed_scale", model.scale, "x")
        self.lines += add * (not first)
        then("embedding_norm", model.embed, "x")
        then("smear", model.smear, "x")
        then("dropout", model.dropout, "x")
        blocks = self.file.blocks
        given = list(dict.fromkeys(name for block in blocks for name in block.given))
        for block in blocks:
            block.methods["forward"].args = signature(["self", block.stream, *given])
        if "state" in given:
            self.lines.append(f"state = {self.file.copy(ForwardState)}(tokens)")
        self.lines += ["x0 = x"] * ("x0" in given)
        stream = blocks[0].stream
        if model.enter is not nothing:
            enter = getattr(model.enter, "forward", model.enter)
            tokens = ["tokens"] * ("tokens" in inspect.signature(enter).parameters)
            self.lines.append(f"{stream} = {self.call('enter', model.enter, 'x', *tokens)}")
        self.lines += ["angles = ANGLES"] * ("angles" in given)
        self.lines.append(
            f"for block in self.blocks:\n    {stream} = block({', '.join([stream, *given])})"
        )
        name = "final_norm" if model.enter is nothing else "leave"
        x = self.call(name, model.final, stream)
        self.lines += [f"x = {x}"] * (x != "x")
        head = "embedding" if model.head is None else "head"
        self.attributes |= {"head": model.head} if head == "head" else {}
        bias = ", self.head.bias" if head == "head" and model.head.bias is not None else ""
        rows = self.call("row_norm", model.rows, f"self.{head}.weight")
        plain = head == "head" and model.rows is nothing
        logits = self.call(
            "logit_scale",
            model.logit_scale,
            "self.head(x)" if plain else f"F.linear(x, {rows}{bias})",
        )
        self.lines.append(f"return {self.call('cap', model.cap, logits)}")
        self.lines = ast.unparse(ast.parse("\n".join(self.lines))).split("\n")

    def tensors(self) -> dict[str, Tensor]:
        found = super().tensors()
        for i, block in enumerate(self.file.blocks):
            found |= {f"blocks.{i}.{name}": one for name, one in block.tensors().items()}
        return found


def formatted(text: str) -> str:
    """Returns a file as black writes it, without the imports that it does not use."""
    if find_spec("ruff") is None:
        raise ImportError("ruff, which formats model.py, is not installed: pip install ruff")
    text = re.sub(r"\b(\d+(?:\.\d+)?e-)0(\d)\b", r"\1\2", text)
    text = re.sub(r"^( *(?:return|[\w., ]+ =) )\(([\w., ]+)\)$", r"\1\2", text, flags=re.M)
    unused = ["check", "--isolated", "--select", "F401", "--fix", "--quiet", "-"]
    for words in (unused, ["format", "--isolated", "--line-length", "88", "-"]):
        command = [sys.executable, "-m", "ruff", *words]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert not done.returncode, f"{done.stderr}{done.stdout}{text}"
        text = done.stdout
    return text
