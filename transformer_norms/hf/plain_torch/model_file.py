"""Writes model.py: the config, the classes of the variant, and the model, for torch alone and for
transformers."""

import ast
import inspect
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from itertools import compress
from pathlib import Path
from textwrap import fill
from typing import Any

import jinja2
from torch import Tensor, nn

from transformer_norms.config.building import build_model
from transformer_norms.config.tree import Config
from transformer_norms.explain.layout import blocks_text
from transformer_norms.formula import Formula
from transformer_norms.hf.plain_torch.copying import TORCHS
from transformer_norms.hf.plain_torch.module_classes import BlockPart, Part, signature
from transformer_norms.hf.plain_torch.norm_classes import NormClasses
from transformer_norms.model.attentions.heads import ForwardState
from transformer_norms.model.attentions.softmax import Sinks
from transformer_norms.model.coefficient import Times
from transformer_norms.model.mlp import ACTIVATIONS
from transformer_norms.model.placement import read_placement
from transformer_norms.model.position import ORDERS, SCALINGS
from transformer_norms.model.sites import place_of
from transformer_norms.names import parameters
from transformer_norms.norms import nothing
from transformer_norms.norms.parts.affine import wide

FOLDER = jinja2.FileSystemLoader(Path(__file__).parent)
TEMPLATES = jinja2.Environment(loader=FOLDER, trim_blocks=True, lstrip_blocks=True,
                               keep_trailing_newline=True)  # fmt: skip
# The sizes of tensors: the first formula that gives the number is written.
SIZES = (
    "width, mlp_width, vocab_size, head_dim, heads * head_dim, kv_heads * head_dim, "
    "kv_heads * (head_dim - rope_dim), rope_dim, value_dim, heads * value_dim, "
    "kv_heads * value_dim, q_rank, kv_rank, rank, heads, kv_heads"
).split(", ")
OF_HEADS = sorted(SIZES, key=lambda formula: "head" not in formula)
MODEL = ("vocab_size", "width", "depth", "heads", "mlp_width", "context", "rank")
WITH_HEADS = "query key value value_embedding q k v head_norm ctx".split()
PREFIXES = {"Attention": "attention_", "LowRank": "low_rank_"}  # of numbers in the config
DOCUMENTS = {
    "Attention": "Causal self-attention",
    "MLP": "A network for each token",
    "GatedMLP": "A gated network for each token, Shazeer 2020, arXiv:2002.05202",
}


class ModelFile:
    """The file of a config. `source()` is its text, and `settings` are then the values of its
    config. Raises ValueError where plain torch cannot be written."""

    def __init__(self, config: Config, vocab_size: int) -> None:
        self.config, self.model = config, build_model(config, vocab_size)
        state, blocks = self.model.state_dict(keep_vars=True), [*self.model.blocks]
        self.saved = {id(tensor): name for name, tensor in state.items()}
        self.norms, self.uses = NormClasses(config), set[str]()
        self.fields: dict[str, dict[int | None, Any]] = defaultdict(dict)
        depth, self.placement = config.model.depth, read_placement(config.placement)
        self.plans = [self.placement.plans(i, depth) for i in range(depth)]
        self.classes: dict[str, tuple[str, list[int]]] = {}  # text -> name, and its blocks
        for name in MODEL[:-1]:
            self.setting(name, self.values(None)[name], None)
        self.times = {  # where a factor is a number in some block: it is 1 in the others
            (kind, slot)
            for block in blocks
            for kind in ("attention", "mlp")
            for slot in ("pre", "skip", "branch")
            if isinstance(getattr(one := getattr(getattr(block, kind), slot), "scale", one), Times)
        }
        self.blocks = [BlockPart(self, block, i) for i, block in enumerate(blocks)]
        self.whole = Whole(self, self.model)

    def tensors(self) -> dict[str, str]:
        """Returns for each tensor of the file its name in a checkpoint."""
        return {name: self.saved[id(tensor)] for name, tensor in self.whole.tensors().items()}

    # ------------------------------------------------------------------------ values of the config

    def setting(self, name: str, value: Any, i: int | None) -> str:
        """Returns the text of a value of the config. Where blocks differ in it, it is a tuple."""
        i = None if name in MODEL else i
        assert self.fields[name].setdefault(i, value) == value, name
        return f"config.{name}" + ("" if i is None else "@")

    def varies(self, name: str) -> bool:
        return len({str(value) for value in self.fields.get(name, {}).values()}) > 1

    def values(self, i: int | None) -> dict[str, Any]:
        """Returns the sizes of a block by name."""
        own, learned = self.config.blocks[i or 0], self.placement.learned.values()
        ranks = {
            name: getattr(own, name) for name in ("q_rank", "kv_rank", "rope_dim", "value_dim")
        }
        ranks["rank"] = max((one.get("rank", 0) for one in learned), default=0)
        return {"vocab_size": self.model.vocab_size, **vars(own.sizes), **ranks}

    def size(self, i: int | None, number: int, heads: bool = False) -> str:
        """Returns a formula of sizes that is the number; with `heads`, rather one of heads."""
        values, formulas = self.values(i), OF_HEADS if heads else SIZES
        fit = [one for one in formulas if number > 1 and Formula(one)(values) == number]
        text = fit[0] if fit else str(number)
        return re.sub(r"[a-z]\w*", lambda name: self.setting(name[0], values[name[0]], i), text)

    # -------------------------------------------------------------------------- what is built, how

    def build(self, part: Part, name: str, thing: Any) -> str:
        """Returns the text that builds an attribute of a class."""
        i, heads = part.i, name in WITH_HEADS
        if name in part.parts:
            return f"{self.class_of(part.parts[name])}(config@@)"
        if hasattr(thing, "norm_place"):
            return self.norm(i, thing)
        if isinstance(thing, nn.Parameter):
            start, many = float(thing.detach().flatten()[0]), thing.dim() > 1
            shape = ", ".join(self.size(i, n, many) for n in thing.shape)
            if start in (0, 1):
                return f"nn.Parameter(torch.{'ones' if start else 'zeros'}({shape}))"
            value = self.setting(f"{name}_start", float(f"{start:.7g}"), i)
            return f"nn.Parameter(torch.full(({shape}{'' if many else ','}), {value}))"
        if isinstance(thing, nn.Embedding):
            rows = "context" if name == "positions" else "vocab_size"
            return f"nn.Embedding(config.{rows}, {self.size(i, thing.embedding_dim, heads)})"
        if type(thing) in TORCHS:
            reads = self.size(i, thing.in_features, name == "output")
            writes = self.size(i, thing.out_features, heads)
            return f"nn.Linear({reads}, {writes}, bias={thing.bias is not None})"
        if isinstance(thing, (int, float, tuple)) or thing is None:
            return self.number(part, name, thing)
        if isinstance(thing, nn.Dropout):
            return f"nn.Dropout({self.setting('dropout', thing.p, None)})"
        kind: Any = type(thing)
        words = []
        for key, one in parameters(kind).items():
            if key not in ("device", "dtype") and one.kind is not one.VAR_POSITIONAL:
                text = self.argument(i, name, thing, key)
                words.append(f"{key}={text}" if one.kind is one.KEYWORD_ONLY else text)
        return f"{self.copy(type(thing))}({', '.join(words)})"

    def argument(self, i: int | None, name: str, thing: Any, key: str) -> str:
        """Returns an argument of the class of a connection, or of a part of attention."""
        connected, both = ".connections." in type(thing).__module__, len(self.placement.joins) > 1
        if connected and key in self.placement.connection:
            return self.setting(f"connection_{key}", self.placement.connection[key], None)
        if key in ("index", "l"):
            self.uses.add("i")
        index = f"2 * i{' + 1' * name.startswith('mlp')}" if both else "i"
        known = {"index": index, "l": "i + 1", "vocab_size": "config.vocab_size",
                 "count": "2 * config.depth" if both else "config.depth", "depth": "config.depth",
                 "bias": str(getattr(thing, "bias", None) is not None)}  # fmt: skip
        match key:
            case _ if key in known:
                return known[key]
            case "width" | "in_features":
                return self.size(i, getattr(thing, "in_features", self.config.model.width))
            case "norm":
                return self.norms.maker() if connected else self.norm(i, thing.norm)
            case "norms":
                count = self.size(i, len(thing.heads), heads=True)
                return f"{self.norm(i, thing.heads[0])} for _ in range({count})"
            case "final":
                return "nn.Identity()" if thing.norm is nothing else self.norm(None, thing.norm)
            case "activation":
                return self.copy(ACTIVATIONS[self.config.mlp.activation])
            case "share":
                share = self.config.blocks[i or 0].activation_sparsity
                return self.setting("activation_sparsity", share, i)
            case "each" | "heads" | "out_features":
                number = thing.out_features // thing.heads if key == "each" else getattr(thing, key)
                return self.size(i, number, heads=True)
            case "channels":
                return str(thing.smear_gate.in_features)
        field = name if name.endswith(key) else f"{name}_{key}"
        return self.setting(field, getattr(thing, key), i)

    def copy(self, thing: Any) -> str:
        return self.norms.copies.name(thing)

    def norm(self, i: int | None, norm: nn.Module) -> str:
        place = place_of(norm)
        return self.norms.build(norm, self.size(i, place.width, place.site in WITH_HEADS))

    def number(self, part: Part, name: str, value: Any) -> str:
        own = self.values(part.i)
        if name == "groups":
            return f"config.heads // {self.setting('kv_heads', own['kv_heads'], part.i)}"
        if name == "index":
            self.uses.add("i")
            return "i"
        if name == "kv_heads" and value == own["heads"] and not self.varies(name):
            name = "heads"
        prefix = "" if name in own else PREFIXES.get(type(part.module).__name__, "")
        return self.setting(f"{prefix}{name}", value, part.i)

    # ---------------------------------------------------------------------- attention's functions

    def attending(self, attend: Any) -> dict[str, Any]:
        """Returns what the function of queries, keys and values takes besides the scale."""
        blocks: Any = self.model.blocks
        keys = {"window": "sliding_window", "chunk": "attention_chunk"}
        own = {name: getattr(attend, key) for name, key in keys.items()
               if any(getattr(block.attention.f.attend, key) for block in blocks)}  # fmt: skip
        own |= {"slopes": tuple(attend.pattern.bias.slopes)} if attend.pattern.bias else {}
        own |= {"cap": attend.cap} if attend.cap is not None else {}
        own |= {"sinks": attend.sinks} if isinstance(attend, Sinks) else {}
        self.uses |= {*own, *(["dropout"] if attend.dropout else [])}
        return own

    def angles_of(self, part: Part, which: int, angles: str) -> str:
        """Returns the angles of a block."""
        position: Any = self.model.position
        return angles if len(position.distinct) == 1 else f"{angles}[{part.own('rope', which)}]"

    def rope(self) -> Mapping[str, Any]:
        """Returns the text that makes the angles, the arguments of the function that it calls, and
        the call that scales frequencies."""
        position: Any = self.model.position
        if not (distinct := getattr(position, "distinct", None)):
            return {}
        turns = [(base, 2 * count, 2 * span, factor) for base, count, span, factor in distinct]
        scaled = {size for size, turn in zip(position.attention_factors, turns, strict=True)
                  if turn[3] != 1}  # fmt: skip
        used = [True, True, any(turn[1] != turn[2] for turn in turns), bool(scaled)]
        takes = [*compress(("base", "dims", "whole", "factor"), used)]
        numbers = tuple(tuple(compress(turn, used)) for turn in turns)
        each = [self.setting(f"rope_{key}", one, None)
                for key, one in zip(takes, numbers[0], strict=True) if len(turns) == 1]  # fmt: skip
        made = f"rotary({', '.join(['x', *each])})"
        if len(turns) > 1:
            turned = self.setting("rope_turns", numbers, None)
            made = f"[rotary(x, *turn) for turn in {turned}]"
        call = ""
        if len(scaled) > 1:
            raise ValueError("position.scaling: its attention_factor differs between blocks")
        for size in scaled:
            scaling = {**self.config.position["scaling"], "attention_factor": size}
            names = parameters(function := SCALINGS[scaling["type"]])
            words = [f"{key}={scaling[key]!r}" for key in names if key in {*scaling} - {"factor"}]
            words += [f"{key}={key}" for key in ("base", "dims", "factor") if key in names]
            call = f"{self.copy(function)}(powers, {', '.join(words)})"
        self.copy(wide)
        return {"takes": takes, "made": made.replace("config.", "self.config."), "call": call}

    # ------------------------------------------------------------------------------------- classes

    def class_of(self, part: Part) -> str:
        """Returns the name of a part's class. Parts with the same text share it."""
        text, kind = part.text(), type(part.module).__name__.replace("Gated", "")
        kind = "Block" if isinstance(part, BlockPart) else kind
        alike = [name for name, _ in self.classes.values() if re.fullmatch(rf"{kind}\d*", name)]
        name = f"{kind}{len(alike) + 1 if alike else ''}"
        name, blocks = self.classes.setdefault(text, (name, []))
        blocks.append(part.i or 0)
        return name

    def document(self, part: Part) -> str:
        kind = type(part.module).__name__
        if not isinstance(part, BlockPart):
            first = (inspect.getdoc(type(part.module)) or "").partition("\n\n")[0]
            return f"{DOCUMENTS.get(kind, first)}##."
        equations = self.placement.equation(part.i or 0, self.config.model.depth)
        texts = {name: text for name, text in equations.items() if name != "end"}
        if len({*texts.values()}) == 1:
            both = ", where f is attention and then mlp" * (len(texts) > 1)
            return f"{next(iter(texts.values()))}{both}##"
        return "\n".join(f"{name}: {text}" for name, text in texts.items()) + "##\n"

    def source(self) -> str:
        """Returns the text of model.py."""
        rope, kinds = self.rope(), [self.class_of(block) for block in self.blocks]
        for i, kind in enumerate(kinds):
            if len({*kinds}) > 1:
                self.setting("kinds", [*dict.fromkeys(kinds)].index(kind), i)
        built = [f"self.{name} = {self.build(self.whole, name, thing)}"
                 for name, thing in self.whole.attributes.items()]  # fmt: skip
        classes, names = [], [re.sub(r"\d", "", name) for name, _ in self.classes.values()]
        for text, (name, blocks) in self.classes.items():
            several = names.count(re.sub(r"\d", "", name)) > 1
            where = f", in {blocks_text(blocks)}" if several else ""
            classes.append(text.replace("##", where).replace("class NAME", f"class {name}"))
        every = range(self.config.model.depth)
        self.settings = {
            name: tuple(map(own.get, every)) if self.varies(name) else next(iter(own.values()))
            for name, own in self.fields.items()
        }
        text = TEMPLATES.get_template("model.py.jinja").render(
            config=self.config, fields=self.settings, rope=rope, uses=self.uses, built=built,
            functions=[*self.norms.copies.texts.values(), *self.norms.texts.values()],
            classes=classes, kinds=[*dict.fromkeys(kinds)],
            forward=[line.replace("ANGLES", rope.get("made", "")) for line in self.whole.lines],
        )  # fmt: skip
        text = re.sub(
            r"config\.(\w+)@(?!@)",
            lambda name: f"config.{name[1]}" + "[i]" * self.varies(name[1]),
            text,
        )
        given = "config, i" if "i" in self.uses or "[i]" in text else "config"
        return formatted(text.replace("config@@", given))


class Whole(Part):
    """The model around the blocks."""

    def write(self) -> None:
        model: Any = self.module
        blocks, self.attributes["embedding"] = self.file.blocks, model.embedding
        stream = blocks[0].stream
        given = [*dict.fromkeys(name for block in blocks for name in block.given)]
        for block in blocks:
            block.methods["forward"].args = signature(["self", stream, *given])
        position, added = self.file.config.position.type, []
        if position == "learned":
            self.attributes["positions"] = model.position.position
            added = ["x = x + self.positions.weight[: x.shape[1]]"]
        elif position == "sinusoidal":
            added = ["x = x + sinusoids(x)"]
        after = model.enter_positions is ORDERS["after"]
        scale = partial(self.call, "embed_scale", model.scale)
        x = self.call("row_norm", model.rows, "self.embedding(tokens)")
        self.lines, x = [f"x = {x if after else scale(x)}", *added], scale("x") if after else "x"
        for name, key in {
            "embedding_norm": "embed",
            "smear": "smear",
            "dropout": "dropout",
        }.items():
            x = self.call(name, getattr(model, key), x)
        self.lines += [f"x = {x}"] if x != "x" else []
        self.lines += ["x0 = x"] if "x0" in given else []
        if model.enter is not nothing:
            enter = getattr(model.enter, "forward", model.enter)
            tokens = ["tokens"] * ("tokens" in inspect.signature(enter).parameters)
            self.lines.append(f"{stream} = {self.call('enter', model.enter, 'x', *tokens)}")
        self.lines += ["angles = ANGLES"] if "angles" in given else []
        if "state" in given:
            self.lines.append(f"state = {self.file.copy(ForwardState)}(tokens)")
        call = f"{stream} = block({', '.join([stream, *given])})"
        self.lines.append(f"for block in self.blocks:\n    {call}")
        x = self.call("final_norm" if model.enter is nothing else "leave", model.final, stream)
        self.lines += [f"x = {x}"] if x != "x" else []
        head = "embedding" if model.head is None else "head"
        bias = ", self.head.bias" if model.head is not None and model.head.bias is not None else ""
        rows = self.call("row_norm", model.rows, f"self.{head}.weight")
        logits = f"F.linear(x, {rows}{bias})"
        if model.head is not None:
            self.attributes["head"] = model.head
            logits = "self.head(x)" if model.rows is nothing else logits
        logits = self.call(
            "logit_cap", model.cap, self.call("logit_scale", model.logit_scale, logits)
        )
        self.lines.append(f"return {logits}")
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
    text = re.sub(r'^( +)"""(.+?)"""$', _wrapped, text, flags=re.M | re.S)
    unused = ["check", "--isolated", "--select", "F401", "--fix", "--quiet", "-"]
    for words in (unused, ["format", "--isolated", "--line-length", "88", "-"]):
        command = [sys.executable, "-m", "ruff", *words]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert not done.returncode, f"{done.stderr}{done.stdout}{text}"
        text = done.stdout
    return text


def _wrapped(match: re.Match[str]) -> str:
    """Returns a docstring whose lines are not too long."""
    begin, long = match[1], lambda part: max(map(len, part.split("\n"))) > 84
    parts = [re.sub(r"\n *", f"\n{begin}", part) if not long(part) else fill(
        re.sub(r"\s*\n\s*", " ", part.strip()), 86, initial_indent=begin, subsequent_indent=begin,
        break_on_hyphens=False).strip() for part in match[2].split("\n\n")]  # fmt: skip
    ended = f"\n{begin}" if "\n" in "\n\n".join(parts).strip() else ""
    return f'{begin}"""{f"{chr(10) * 2}{begin}".join(part.strip() for part in parts)}{ended}"""'
