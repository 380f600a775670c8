"""Reads a placement's equation: which norm stands at which site, and what multiplies.

    x + norm(f(norm(x)))      ->  pre: norm, out: norm
    norm(a * x + f(x))        ->  post: norm, and the coefficient a on the skip

Python's parser gives a tree, which is walked and never run. An equation that the block cannot
compute is a ValueError of one line: it quotes the faulty part and says what could stand there.
"""

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from transformer_norms.formula import OF_NUMBERS
from transformer_norms.model.sites import (
    EARLIER,
    HEAD_SITES,
    INSIDE,
    NORMED,
    REST_OF_B,
    SCALES,
    SHARES,
    Coefficient,
    Site,
    SubLayerPlan,
)
from transformer_norms.names import suggestion, theirs, unknown

BLOCK = "the block computes post(a * x + c * start + c0 * x0 + b * out(f(pre(x))))"
_NUMBERS = frozenset("N R l i d dh m H L".split())
# Names that no learned coefficient can have.
READ, WRITE = "read", "write"  # of a connection, and X its streams
RESERVED = _NUMBERS | {"x", "X", "r", "f", "norm", READ, WRITE, *EARLIER, *INSIDE, *OF_NUMBERS}
_MOST_CHARACTERS = 2000


@dataclass(frozen=True)
class Term:
    """One term of a sum: its sign, its factors, and the stream that they multiply."""

    sign: int
    factors: tuple[ast.expr, ...]
    stream: ast.expr

    @property
    def plain(self) -> bool:
        return self.sign == 1 and not self.factors


class Reader:
    """Reads the equation of one sub-layer, `kind`. `kinds` lists all sub-layers that share the
    equation. `learned` has the learned coefficients that it may use."""

    def __init__(
        self, text: Any, learned: Mapping[str, Any], kind: str, kinds: Collection[str] = ()
    ) -> None:
        self.learned, self.kind, self.kinds = learned, kind, kinds or (kind,)
        self.sites: dict[str, Site] = {}
        self.coefficients: dict[str, Coefficient] = {}
        self.adds: dict[str, Coefficient] = {}
        self.enters: dict[str, Coefficient] = {}
        self.reads = "x"  # the name of what the skip carries and f reads
        self.normed = ""  # the name of what f reads behind its norm, where it has one
        self.names: dict[str, str] = {}
        if not isinstance(text, str) or len(text) > _MOST_CHARACTERS:
            raise ValueError(f"{str(text)[:60]!r} is not an equation, such as x + f(norm(x))")
        self.text = text.strip()
        try:
            self.tree = ast.parse(self.text, mode="eval").body
            ast.unparse(self.tree)
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            why = f"it cannot be read: {getattr(error, 'msg', error)}"
            self.refuse(f"{why}; an equation is arithmetic, such as x + f(norm(x))")

    # -------------------------------------------------------------------- the four kinds of block

    def read_serial(self) -> SubLayerPlan:
        """`norm(a * x + b * norm(f(norm(x))) + start)`: one stream."""
        self.check_sub_layers("f")
        self.read_enter()
        terms = list(self.terms(self.tree))
        whole = terms[0].stream
        if len(terms) == 1 and self.is_norm(whole) and not self.is_branch(whole):
            terms = self.read_post(terms[0])
        beside = {name: name for name in EARLIER} | ({self.normed: NORMED} if self.normed else {})
        streams: dict[str, list[Term]] = {name: [] for name in (self.reads, *beside, "f")}
        for term in terms:
            streams[self.stream_of(term, [*streams])].append(term)
        (branch,) = streams["f"]
        self.read_skip(streams[self.reads], branch)
        for name, slot in beside.items():
            if streams[name]:
                self.adds[slot] = self.read_scale(slot, streams[name])
        self.read_branch(branch.stream, self.reads)
        return self.plan()

    def read_enter(self) -> None:
        """Reads `h := a * x + c * x0`, the sum that the sub-layer reads in the place of x, and
        leaves h in its place; or `f(h := norm(x))`, which leaves the norm."""
        named = self.named()
        if not named:
            return
        name = named[0].target.id
        uses = [n for n in ast.walk(self.tree) if isinstance(n, ast.Name) and n.id == name]
        if len(named) > 1 or name in RESERVED or name in self.learned:
            self.refuse("one sum can be named, and by a new name", named[0])
        if min(use.col_offset for use in uses) < named[0].col_offset or self.sub_layers(named[0]):
            self.refuse(f"{name} stands for a sum of x, start and x0, named where it first stands")
        calls = (call for call in self.sub_layers(self.tree) if isinstance(call, ast.Call))
        if any(call.args[:1] == named for call in calls):
            self.normed, self.tree = name, _Unnamed(named[0].value).visit(self.tree)
            return
        streams: dict[str, list[Term]] = {"x": [], "start": [], "x0": []}
        for term in self.terms(named[0].value):
            streams[self.stream_of(term, [*streams])].append(term)
        for stream, terms in streams.items():
            if terms:
                self.enters[stream] = self.read_scale(f"enter.{stream}", terms)
        left = ast.copy_location(ast.Name(name, ast.Load()), named[0])
        self.reads, self.tree = name, _Unnamed(left).visit(self.tree)

    def read_parallel(self) -> SubLayerPlan:
        """Reads `x + attention(h := norm(x)) + mlp(h)` and returns the plan of `kind`. The kind
        `block` stands for the norm that both sub-layers read."""
        self.check_sub_layers("attention", "mlp")
        shared, reads = self.read_shared()
        if self.kind == "block":
            self.sites |= {} if shared is None else {"pre": shared}
            return self.plan()
        skips = 0
        for term in self.terms(self.tree):
            calls = self.sub_layers(term.stream)
            if not calls:
                skips += 1
                if not (term.plain and ast.unparse(term.stream) == "x" and skips == 1):
                    self.refuse("side by side the block computes x + attention(x) + mlp(x)")
            elif [name_of(call) for call in calls] == [self.kind]:
                if not term.plain:
                    self.coefficients["b"] = self.read_scale("b", [term])
                self.read_branch(term.stream, reads)
        if skips == 0:
            self.refuse("x is missing; side by side the block computes x + attention(x) + mlp(x)")
        return self.plan()

    def read_dual(self, r: Any, end: Any) -> tuple[SubLayerPlan, Site]:
        """Reads the equations of two streams, `norm(x + f(x))` for x, `r + f(x)` and `x + norm(r)`:
        returns the plan of the sub-layer, and the norm before the head."""
        plan = self.read_serial()
        if plan.adds or plan.enters or "a" in plan.coefficients:
            self.refuse("with two streams, x is post(x + b * out(f(pre(x))))")
        branch = next(term for term in self.all_terms() if self.sub_layers(term.stream))
        sum_of_r = Reader(r, self.learned, self.kind)
        terms = [text_of(term) for term in sum_of_r.terms(sum_of_r.tree)]
        if terms != ["r", text_of(branch)]:
            sum_of_r.refuse(f"with two streams, r is r + {text_of(branch)}: the branch of x")
        ending = Reader(end, self.learned, self.kind)
        x, *rest = ending.terms(ending.tree)
        site = Site("none")
        stream = rest[0].stream if rest else x.stream
        if ending.is_norm(stream):
            site, stream = ending.norm_at("final", stream)
        if [text_of(x), ast.unparse(stream)] != ["x", "r"] or len(rest) > 1 or not rest[0].plain:
            ending.refuse("two streams end as x + norm(r)")
        return plan, site

    def read_streams(self) -> SubLayerPlan:
        """Reads `write(X, b * norm(f(norm(read(X)))))`: a connection reads streams X and writes to
        them."""
        self.check_sub_layers("f")
        match self.tree:
            case ast.Call(args=[ast.Name("X"), branch], keywords=[]) if name_of(self.tree) == WRITE:
                (term, *more) = self.terms(branch)
            case _:
                self.refuse("with a connection, the block computes write(X, f(norm(read(X))))")
        if more or self.named():
            self.refuse("write takes X and one branch, as write(X, f(norm(read(X))))", branch)
        if not term.plain:
            self.coefficients["b"] = self.read_scale("b", [term])
        self.read_branch(term.stream, f"{READ}(X)")
        return self.plan()

    def plan(self) -> SubLayerPlan:
        return SubLayerPlan(self.sites, self.coefficients, self.adds, self.enters, self.names)

    # ------------------------------------------------------------------------------- sums and terms

    def terms(
        self, node: ast.expr, sign: int = 1, factors: tuple[ast.expr, ...] = ()
    ) -> Iterator[Term]:
        """The terms of a sum, with what stands before a bracket multiplied out."""
        match node:
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
                yield from self.terms(left, sign, factors)
                yield from self.terms(right, -sign if isinstance(op, ast.Sub) else sign, factors)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                yield from self.terms(operand, -sign, factors)
            case ast.BinOp(left=factor, op=ast.Mult(), right=stream) if self.is_scalar(factor):
                yield from self.terms(stream, sign, (*factors, factor))
            case ast.BinOp(left=stream, op=ast.Mult(), right=factor) if self.is_scalar(factor):
                yield from self.terms(stream, sign, (*factors, factor))
            case ast.BinOp(left=stream, op=ast.Div(), right=divisor) if self.is_scalar(divisor):
                inverse = ast.BinOp(ast.Constant(1), ast.Div(), divisor)
                yield from self.terms(stream, sign, (*factors, inverse))
            case ast.BinOp(left=left, op=ast.Mult() | ast.Div(), right=right):
                self.check_name(left)
                self.check_name(right)
                self.refuse("a stream can be multiplied or divided by numbers only", node)
            case ast.Name() | ast.Call() if not self.is_scalar(node):
                yield Term(sign, factors, node)
            case _ if self.is_scalar(node):
                self.refuse("a number cannot be a term; write it as a factor, as 2 * x", node)
            case _:
                self.refuse(f"this is not a term of a sum; {BLOCK}", node)

    def all_terms(self) -> Iterator[Term]:
        """The terms of the sum: inside the norm at post if there is one."""
        tree = self.tree
        if "post" in self.sites:
            (outer,) = self.terms(tree)
            tree = argument_of(outer.stream)
        return self.terms(tree)

    def stream_of(self, term: Term, known: list[str]) -> str:
        """Which stream a term is of: x, start, x0, or the branch f."""
        if self.sub_layers(term.stream):
            return "f"
        self.check_name(term.stream)
        if not (isinstance(term.stream, ast.Name) and term.stream.id in known):
            if ast.unparse(term.stream) == "x":
                self.refuse(f"the sub-layer reads {self.reads}; write {self.reads} for x")
            self.refuse("the skip can have a factor, but no norm and no function", term.stream)
        return term.stream.id

    def check_name(self, node: ast.expr) -> None:
        """Refuses a name that is no stream, number or learned coefficient."""
        streams = [*dict.fromkeys(("x", self.reads)), *filter(None, [self.normed]), *EARLIER]
        known = [*streams, *self.learned, *sorted(_NUMBERS)]
        if isinstance(node, ast.Name) and node.id not in known:
            why = unknown("name", node.id, known)
            self.refuse(f"{why}; placement.learned declares what is learned", node)

    def is_scalar(self, node: ast.AST) -> bool:
        """Returns whether the node is made of numbers, their names and learned coefficients."""
        match node:
            case ast.Constant(value=value):
                return type(value) in (int, float)
            case ast.Name(id=name):
                return name in _NUMBERS or name in self.learned
            case ast.BinOp(op=ast.MatMult()):
                return False
            case ast.BinOp(left=left, right=right):
                return self.is_scalar(left) and self.is_scalar(right)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self.is_scalar(operand)
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]):
                return name in OF_NUMBERS and self.is_scalar(argument)
        return False

    # ------------------------------------------------------------------------------- coefficients

    def read_skip(self, skip: list[Term], branch: Term) -> None:
        """Reads a and b. A skip x - b * x or (1 - b) * x with a learned b is kept as 1 - b."""
        b = self.read_scale("b", [branch])
        rest = f"1 - {self.names.get('b', '')}"
        skip_text = " ".join(text_of(Term(term.sign, term.factors, ast.Name("x"))) for term in skip)
        if rest != "1 - " and skip_text in (f"x -{rest[4:]} * x", f"{rest} * x"):
            a: Coefficient = REST_OF_B
        else:
            a = self.read_scale("a", skip)
        values = {"a": a, "b": b}
        self.coefficients |= {key: value for key, value in values.items() if value != 1}

    def read_scale(self, slot: str, terms: list[Term]) -> Coefficient:
        """Returns the factor of a stream, summed over its terms. Keeps the name of a learned
        coefficient under `slot`."""
        factors = [factor for term in terms for factor in term.factors]
        learned = [name for factor in factors for name in names_in(factor) if name in self.learned]
        if learned:
            alone = len(factors) == len(terms) == 1 and terms[0].sign == 1
            if not (alone and isinstance(factors[0], ast.Name)):
                self.refuse(
                    f"'{learned[0]}' is learned: write it alone before a stream, as "
                    f"{learned[0]} * x, or in a convex residual, x + b * (f(x) - x); a constant "
                    "factor goes into its init",
                    factors[0],
                )
            self.names[slot] = learned[0]
            return self.learned[learned[0]]
        if len(factors) == len(terms) == 1 and terms[0].sign == 1:
            (only,) = factors
            return only.value if isinstance(only, ast.Constant) else self.source(only)
        if all(not term.factors for term in terms):
            return sum(term.sign for term in terms)
        return _sum_of(terms)

    # -------------------------------------------------------------------------------------- norms

    def read_post(self, whole: Term) -> list[Term]:
        """The norm around the whole sum; the sum's terms."""
        site, inner = self.norm_at("post", whole.stream)
        scale = 1 if whole.plain else self.read_scale("post.scale", [whole])
        self.sites["post"] = Site(site.norm, site.share, scale)
        return list(self.terms(inner))

    def read_branch(self, node: ast.expr, reads: str) -> None:
        """Reads out(f(pre(x), q=norm, ...)), or out(attention(h)) where h is the shared input."""
        if self.is_norm(node):
            self.sites["out"], node = self.norm_at("out", node)
        if not (isinstance(node, ast.Call) and self.is_sub_layer(node)):
            self.refuse("the branch is out(f(pre(x))); nothing else can stand around f", node)
        if len(node.args) != 1:
            self.refuse("f reads one stream; a site is named, as f(norm(x), q=norm)", node)
        if len({keyword.arg for keyword in node.keywords}) < len(node.keywords):
            self.refuse("a site is named twice", node)
        self.read_pre(node.args[0], reads)
        for keyword in node.keywords:
            self.read_inside(node, str(keyword.arg), keyword.value)

    def read_pre(self, node: ast.expr, reads: str) -> None:
        """The norm before f, and the coefficient on its output."""
        if isinstance(node, ast.NamedExpr):  # the shared norm, which is the block's
            return
        term, *more = self.terms(node)
        site, inner = Site("none"), term.stream
        if self.is_norm(inner):
            site, inner = self.norm_at("pre", inner)
        if more or ast.unparse(inner) != reads:
            self.refuse(f"the sub-layer reads {reads} or a norm of it, as f(norm({reads}))", node)
        if site.norm != "none" or not term.plain:
            scale = 1 if term.plain else self.read_scale("pre.scale", [term])
            self.sites["pre"] = Site(site.norm, site.share, scale)

    def read_shared(self) -> tuple[Site | None, str]:
        """The norm that both sub-layers read, `h := norm(x)`, and the name of what they read."""
        named = self.named()
        if not named:
            return None, "x"
        if len(named) > 1 or not self.is_norm(named[0].value):
            self.refuse("one norm can be shared, as attention(h := norm(x)) + mlp(h)", named[0])
        site, inner = self.norm_at("pre", named[0].value)
        if ast.unparse(inner) != "x":
            self.refuse("the shared norm reads x", inner)
        return site, named[0].target.id

    def named(self) -> list[ast.NamedExpr]:
        """Every `h := ...` of the equation."""
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.NamedExpr)]

    def read_inside(self, call: ast.Call, name: str, node: ast.expr) -> None:
        """Reads a norm or a scale inside f. An equation of both sub-layers may name the sites of
        either."""
        known = [site for kind in self.kinds for site in (*INSIDE[kind], *SCALES[kind])]
        if name not in known:
            where = "" if len(self.kinds) > 1 else f" of {self.kind}"
            raise ValueError(
                f"{suggestion(name, known)}there is no site '{name}' in {self.source(call)}; sites "
                f"inside f{where} are {', '.join(known)}"
            )
        if name in SCALES[self.kind]:
            if not self.is_scalar(node):
                self.refuse(f"{name} is a number, a formula or a learned coefficient", node)
            self.coefficients[name] = self.read_scale(name, [Term(1, (node,), call)])
        if name in INSIDE[self.kind]:
            factor, norm = factor_and_norm(node)
            if factor is None:
                self.sites[name] = self.site(name, norm)
            elif self.is_scalar(factor):
                site, term = self.site(name, norm), Term(1, (factor,), norm)
                scale = self.read_scale(f"{name}.scale", [term])
                self.sites[name] = Site(site.norm, site.share, scale)
            else:
                self.refuse(f"{name} holds a norm, or a coefficient times a norm", node)

    def norm_at(self, name: str, call: ast.expr) -> tuple[Site, ast.expr]:
        """Returns the norm that a call names, and the argument of the call."""
        assert isinstance(call, ast.Call)
        if len(call.args) != 1 or call.keywords:
            self.refuse("a norm takes one stream, as norm(x)", call)
        if self.is_norm(call.args[0]):
            both = f"{name_of(call)} and {name_of(call.args[0])}"
            self.refuse(f"two norms at {name}, {both}; a site holds one norm", call)
        return self.site(name, call.func), call.args[0]

    def site(self, name: str, node: ast.expr) -> Site:
        """`norm`, a norm's name, or `norm@full`."""
        share = "head"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            share, norm = ast.unparse(node.right), node.left
            if share not in SHARES:
                self.refuse(unknown("share", share, SHARES), node)
            if name not in (*HEAD_SITES, "head_norm"):
                self.refuse(
                    f"'@' is only for q, k, v and head_norm; {name} does not hold heads", node
                )
            node = norm
        if not isinstance(node, ast.Name) or node.id in RESERVED - {"norm"}:
            self.refuse(f"{name} needs a norm: write norm or the name of a norm", node)
        return Site(node.id, share)

    def is_norm(self, node: ast.AST) -> bool:
        """Returns whether the node is a norm of a stream. Its name is checked later."""
        others = self.is_scalar(node) or self.is_sub_layer(node) or name_of(node) in (READ, WRITE)
        return isinstance(node, ast.Call) and not others

    # --------------------------------------------------------------------------------- sub-layers

    def is_sub_layer(self, node: ast.AST) -> bool:
        return name_of(node) in ("f", *INSIDE)

    def is_branch(self, node: ast.expr) -> bool:
        """Returns whether the node is f(x) inside norms only: its norm is `out`, without a skip."""
        while self.is_norm(node):
            node = argument_of(node)
        return self.is_sub_layer(node)

    def sub_layers(self, node: ast.AST) -> list[ast.AST]:
        return [part for part in ast.walk(node) if self.is_sub_layer(part)]

    def check_sub_layers(self, *wanted: str) -> None:
        """Each wanted sub-layer stands once in the equation, and no other does."""
        names = [name_of(call) for call in self.sub_layers(self.tree)]
        if sorted(names) != sorted(wanted):
            each = " and ".join(f"{name}(x)" for name in wanted)
            pairs = [f"{our} for {their}" for our, their in self.foreign(wanted)]
            near = f"did you mean {', '.join(pairs)}? " if pairs else ""
            self.refuse(f"{near}the equation must contain {each} exactly once; {BLOCK}")

    # -------------------------------------------------------------------------------------- errors

    def foreign(self, wanted: Collection[str]) -> list[tuple[str, str]]:
        """Returns each function of the equation that has another name here, behind that name."""
        calls = (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        names = dict.fromkeys(call.func.id for call in calls if isinstance(call.func, ast.Name))
        pairs = [(our, name) for name in names for our in theirs(name, "placement.equation")]
        return [(our, name) for our, name in pairs if our in (*wanted, "norm") and our != name]

    def refuse(self, why: str, part: ast.AST | None = None) -> NoReturn:
        whole = self.text if len(self.text) <= 120 else f"{self.text[:117]}..."
        if part is None or self.source(part) == self.text:
            raise ValueError(f"'{whole}': {why}")
        raise ValueError(f"'{self.source(part)}' in '{whole}': {why}")

    def source(self, part: ast.AST) -> str:
        return " ".join((ast.get_source_segment(self.text, part) or ast.unparse(part)).split())


def canonical(text: str) -> str:
    """An equation without what changes nothing: blanks, and brackets that only group. A text that
    is no equation, as in a damaged folder, stays as it is."""
    try:
        return ast.unparse(ast.parse(text.strip(), mode="eval"))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return text


def name_of(node: ast.AST) -> str:
    """Returns the name of the called function, or an empty text."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return node.func.id if called else ""  # type: ignore[attr-defined]


class _Unnamed(ast.NodeTransformer):
    """Leaves another expression in the place of `h := ...`, such as h, or what it names."""

    def __init__(self, left: ast.expr) -> None:
        self.left = left

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        return self.left


def argument_of(call: ast.expr) -> ast.expr:
    assert isinstance(call, ast.Call)
    return call.args[0] if call.args else call.func


def factor_and_norm(node: ast.expr) -> tuple[ast.expr | None, ast.expr]:
    """Splits `s * norm@full` into factor and norm. Python parses it as `(s * norm) @ full`."""
    match node:
        case ast.BinOp(left=factor, op=ast.Mult(), right=norm):
            return factor, norm
        case ast.BinOp(left=ast.BinOp(left=factor, op=ast.Mult(), right=norm), right=share) as at:
            return factor, ast.BinOp(norm, at.op, share)
    return None, node


def names_in(node: ast.AST) -> list[str]:
    return [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]


def text_of(term: Term) -> str:
    """Returns a term's text, such as `-b * x`."""
    factors = [ast.unparse(factor) for factor in term.factors]
    return ("-" if term.sign < 0 else "") + " * ".join([*factors, ast.unparse(term.stream)])


def _sum_of(terms: list[Term]) -> str:
    """`1 - (0.3)`: the factors of a stream that stands in several terms."""
    text = ""
    for term in terms:
        product = " * ".join(f"({ast.unparse(factor)})" for factor in term.factors) or "1"
        text += f" {'-' if term.sign < 0 else '+'} {product}"
    return text.strip().removeprefix("+ ")
