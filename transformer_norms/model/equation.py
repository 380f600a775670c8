"""Reads a placement's equation: which norm is at which site, and which factor multiplies what.

    norm(2 * x + f(norm(x)))                                             the text of an equation
    SubLayerPlan(sites={post: norm, pre: norm}, scales={a: 2})           its plan, read here
    SubLayer(f, pre=RMSNorm(d), post=RMSNorm(d), skip=Times(2))          built by assembly.py
    post(skip(x) + branch(out(f(pre(x)))))                               computed by block.py

Python's parser gives a tree, which is walked and never run: `terms` splits a sum into terms, each a
stream with its factors, and a `Reader` puts each factor and norm into a slot of the block. An
equation that the block cannot compute is a ValueError of one line, which quotes the faulty part.
"""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from transformer_norms.formula import OF_NUMBERS, is_formula
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
SIDE_BY_SIDE = "side by side the block computes x + attention(h := norm(x)) + mlp(h)"
# What formulas may name; formula.py says what each letter is.
_NUMBERS = frozenset("N R l i d dh m H L".split())
READ, WRITE = "read", "write"  # of a connection, and X its streams
# Names that no learned coefficient can have.
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
    """Reads the equation of one sub-layer, `kind`, into its `plan`. `kinds` lists all sub-layers
    that share the equation. `learned` has the learned coefficients that it may use."""

    def __init__(
        self, text: Any, learned: Mapping[str, Any], kind: str, kinds: Collection[str] = ()
    ) -> None:
        self.learned, self.kind, self.kinds = learned, kind, kinds or (kind,)
        self.plan = SubLayerPlan()
        self.reads = "x"  # the stream that the skip carries and f reads: x, or a sum by its name
        self.normed = ""  # the name of the input of f after its norm, where it has one
        if not isinstance(text, str) or len(text) > _MOST_CHARACTERS:
            raise ValueError(f"{str(text)[:60]!r} is not an equation, such as x + f(norm(x))")
        self.text = text.strip()
        try:
            self.tree = parse(self.text)
        except ValueError as error:
            self.refuse(f"{error}; an equation is arithmetic, such as x + f(norm(x))")

    # -------------------------------------------------------------------- the four kinds of block

    def read_serial(self) -> SubLayerPlan:
        """`norm(a * x + b * norm(f(norm(x))) + start)`: one stream."""
        self.check_sub_layers("f")
        self.read_named()
        self.sum, (whole, *more) = self.tree, self.terms(self.tree)
        if not more and self.is_norm(whole.stream) and not self.is_branch(whole.stream):
            self.sum = self.read_norm("post", whole)
        slots = {name: name for name in EARLIER} | ({self.normed: NORMED} if self.normed else {})
        streams = self.by_stream(self.terms(self.sum), (self.reads, *slots, "f"))
        self.read_branch(streams["f"][0], self.reads)
        self.read_skip(streams[self.reads])
        for name, slot in slots.items():
            if streams[name]:
                self.plan.scales[slot] = self.factor(slot, streams[name])
        return self.plan

    def read_named(self) -> None:
        """Reads `h := ...`. It names a sum that replaces x, as `a * x + c * x0`, or the normed
        input of f, as in `f(h := norm(x))`."""
        if not (named := self.named()):
            return
        name = named[0].target.id
        taken = name in RESERVED or name in self.learned
        if len(named) > 1 or self.is_late(named[0]) or taken or self.sub_layers(named[0]):
            why = "one sum of x, start and x0 can be named, by a new name, where it is first used"
            self.refuse(why, named[0])
        if self.is_read(named[0]):
            self.normed = name
            return
        for stream, terms in self.by_stream(self.terms(named[0].value), ("x", *EARLIER)).items():
            if terms:
                self.plan.scales[f"enter.{stream}"] = self.factor(f"enter.{stream}", terms)
        self.reads = name

    def read_parallel(self) -> SubLayerPlan:
        """Reads `x + attention(h := norm(x)) + mlp(h)` and returns the plan of `kind`. For the
        kind `block` it is the plan with the norm that both sub-layers read."""
        self.check_sub_layers("attention", "mlp")
        for named in self.named():
            read = self.is_read(named) and not self.is_late(named)
            if not (read and self.is_norm(named.value)) or self.reads != "x":
                self.refuse(SIDE_BY_SIDE, named)
            inner = self.read_norm("pre", Term(1, (), named.value))
            if ast.unparse(inner) != "x":
                self.refuse("the shared norm reads x", inner)
            self.reads = named.target.id
        if self.kind == "block":
            return self.plan
        self.plan.sites.clear()  # the shared norm is the block's
        streams = self.by_stream(self.terms(self.tree), ("x", *INSIDE))
        if [*map(len, streams.values())] != [1, 1, 1] or not streams["x"][0].plain:
            self.refuse(SIDE_BY_SIDE)
        self.read_branch(streams[self.kind][0], self.reads)
        return self.plan

    def read_dual(self, r: Any, end: Any) -> tuple[SubLayerPlan, Site]:
        """Reads the equations of two streams, `norm(x + f(x))` for x, `r + f(x)` and `x + norm(r)`:
        returns the plan of the sub-layer, and the norm before the head."""
        plan = self.read_serial()
        plain = not (plan.adds or plan.enters or "a" in plan.scales)
        match self.sum:
            case ast.BinOp(left=ast.Name("x"), op=ast.Add(), right=branch) if plain:
                sum_of_r = f"r + {ast.unparse(branch)}"
            case _:
                self.refuse("with two streams, x is post(x + b * out(f(pre(x))))")
        if canonical(r) != sum_of_r:
            raise ValueError(f"'{r}': with two streams, r is {sum_of_r}: the branch of x")
        ending = Reader(end, self.learned, self.kind)
        match ending.tree:
            case ast.BinOp(left=ast.Name("x"), op=ast.Add(), right=second):
                if ending.is_norm(second):
                    second = ending.read_norm("final", Term(1, (), second))
            case second:
                pass
        if ast.unparse(second) != "r":
            ending.refuse("two streams end as x + norm(r)")
        return plan, ending.plan.site("final")

    def read_streams(self) -> SubLayerPlan:
        """Reads `write(X, b * norm(f(norm(read(X)))))`: a connection reads streams X and writes to
        them."""
        self.check_sub_layers("f")
        why = "with a connection, the block computes write(X, f(norm(read(X))))"
        match self.tree:
            case ast.Call(func=ast.Name("write"), args=[ast.Name("X"), branch], keywords=[]):
                (term, *more) = self.terms(branch)
            case _:
                self.refuse(why)
        if more or self.named():
            self.refuse(why, branch)
        self.read_branch(term, f"{READ}(X)")
        return self.plan

    # ------------------------------------------------------------------------------- sums and terms

    def terms(
        self, node: ast.expr, sign: int = 1, factors: tuple[ast.expr, ...] = ()
    ) -> Iterator[Term]:
        """The terms of a sum. A factor of a bracket is a factor of each term inside it."""
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
            case ast.NamedExpr(target=name):
                yield Term(sign, factors, name)
            case ast.Name() | ast.Call() if not self.is_scalar(node):
                yield Term(sign, factors, node)
            case _ if self.is_scalar(node):
                self.refuse("a number cannot be a term; write it as a factor, as 2 * x", node)
            case _:
                self.refuse(f"this is not a term of a sum; {BLOCK}", node)

    def by_stream(self, terms: Iterable[Term], names: Collection[str]) -> dict[str, list[Term]]:
        """Sorts terms by the streams that they multiply, which have these names: x, start, x0, the
        name of a sum or norm, and the sub-layer of a branch."""
        streams: dict[str, list[Term]] = {name: [] for name in names}
        for term in terms:
            calls = self.sub_layers(term.stream)
            if not calls:
                self.check_name(term.stream)
            name = name_of(calls[0]) if calls else ast.unparse(term.stream)
            if name not in streams:
                if name == "x":
                    self.refuse(f"the sub-layer reads {self.reads}; write {self.reads} for x")
                self.refuse("the skip can have a factor, but no norm and no function", term.stream)
            streams[name].append(term)
        return streams

    def check_name(self, node: ast.expr) -> None:
        """Refuses a name that is not a stream, a number or a learned coefficient."""
        streams = [*dict.fromkeys(("x", self.reads)), *filter(None, [self.normed]), *EARLIER]
        known = [*streams, *self.learned, *sorted(_NUMBERS)]
        if isinstance(node, ast.Name) and node.id not in known:
            why = unknown("name", node.id, known)
            self.refuse(f"{why}; placement.learned declares what is learned", node)

    def is_scalar(self, node: ast.AST) -> bool:
        """Returns whether the node is a formula of numbers and learned coefficients."""
        return is_formula(node, {*_NUMBERS, *self.learned})

    # ------------------------------------------------------------------------------- coefficients

    def read_skip(self, skip: list[Term]) -> None:
        """Reads a. A skip x - b * x or (1 - b) * x with a learned b is kept as 1 - b."""
        b = self.plan.names.get("b", "")
        factors = [(term.sign, *map(ast.unparse, term.factors)) for term in skip]
        if b and factors in ([(1,), (-1, b)], [(1, f"1 - {b}")]):
            self.plan.scales["a"] = REST_OF_B
        else:
            self.read_scale("a", skip)

    def read_scale(self, slot: str, terms: list[Term]) -> None:
        """Keeps the factor of a stream, unless it is 1."""
        if (factor := self.factor(slot, terms)) != 1:
            self.plan.scales[slot] = factor

    def factor(self, slot: str, terms: list[Term]) -> Coefficient:
        """Returns the factor of a stream, summed over its terms. Stores the name of a
        learned coefficient in plan.names[slot]."""
        factors = [factor for term in terms for factor in term.factors]
        names = (part.id for f in factors for part in ast.walk(f) if isinstance(part, ast.Name))
        learned = [name for name in names if name in self.learned]
        single = len(factors) == len(terms) == 1 and terms[0].sign == 1
        if learned:
            if not (single and isinstance(factors[0], ast.Name)):
                self.refuse(
                    f"'{learned[0]}' is learned: write it alone before a stream, as "
                    f"{learned[0]} * x, or in a convex residual, x + b * (f(x) - x); a constant "
                    "factor goes into its init",
                    factors[0],
                )
            self.plan.names[slot] = learned[0]
            return self.learned[learned[0]]
        if single:
            (only,) = factors
            return only.value if isinstance(only, ast.Constant) else self.source(only)
        if not factors:
            return sum(term.sign for term in terms)
        return _sum_of(terms)

    # -------------------------------------------------------------------------------------- norms

    def read_branch(self, term: Term, reads: str) -> None:
        """Reads b * out(f(pre(x), q=norm, ...)), or b * out(attention(h)) where h is the shared
        input."""
        node = term.stream
        self.read_scale("b", [term])
        if self.is_norm(node):
            node = self.read_norm("out", Term(1, (), node))
        if not (isinstance(node, ast.Call) and self.is_sub_layer(node)):
            self.refuse("the branch is out(f(pre(x))); nothing else can be around f", node)
        if len(node.args) != 1 or len({word.arg for word in node.keywords}) < len(node.keywords):
            self.refuse("f reads one stream and names a site once, as f(norm(x), q=norm)", node)
        self.read_pre(node.args[0], reads)
        for keyword in node.keywords:
            self.read_inside(node, str(keyword.arg), keyword.value)

    def read_pre(self, node: ast.expr, reads: str) -> None:
        """The norm before f, and the coefficient on its output."""
        if isinstance(node, ast.NamedExpr):
            if node.target.id == reads:  # the shared norm, which is the block's
                return
            node = node.value
        term, *more = self.terms(node)
        inner = term.stream
        if self.is_norm(inner):
            inner = self.read_norm("pre", term)
            inner = inner.target if isinstance(inner, ast.NamedExpr) else inner
        elif not term.plain:
            self.read_scale("pre.scale", [term])
        if more or ast.unparse(inner) != reads:
            self.refuse(f"the sub-layer reads {reads} or a norm of it, as f(norm({reads}))", node)

    def named(self) -> list[ast.NamedExpr]:
        """Every `h := ...` of the equation."""
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.NamedExpr)]

    def is_read(self, named: ast.NamedExpr) -> bool:
        """Returns whether a sub-layer reads `h := ...` itself, without a norm or a factor."""
        return any(call.args[:1] == [named] for call in self.sub_layers(self.tree))

    def is_late(self, named: ast.NamedExpr) -> bool:
        """Returns whether the name is used before `h := ...`."""
        name = named.target.id
        uses = [n for n in ast.walk(self.tree) if isinstance(n, ast.Name) and n.id == name]
        first = min((use.lineno, use.col_offset) for use in uses)
        return first < (named.lineno, named.col_offset)

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
            self.read_scale(name, [Term(1, (node,), call)])
        if name in INSIDE[self.kind]:
            self.put_norm(name, node, Term(1, (), node))

    def read_norm(self, name: str, term: Term) -> ast.expr:
        """Reads `2 * norm(x)` for a site: the norm with its factor. Returns its argument."""
        call = term.stream
        assert isinstance(call, ast.Call)
        if len(call.args) != 1 or call.keywords:
            self.refuse("a norm takes one stream, as norm(x)", call)
        if self.is_norm(call.args[0]):
            both = f"{name_of(call)} and {name_of(call.args[0])}"
            self.refuse(f"two norms at {name}, {both}; a site holds one norm", call)
        self.put_norm(name, call.func, term)
        return call.args[0]

    def put_norm(self, name: str, node: ast.expr, term: Term) -> None:
        """Puts `norm`, a norm's name, or `s * norm@full` at a site, with the factor of the term.
        Python reads the last as `(s * norm) @ full`."""
        share = "head"
        match node:
            case ast.BinOp(left=left, op=ast.MatMult(), right=right):
                share = ast.unparse(right)
                if share not in SHARES:
                    self.refuse(unknown("share", share, SHARES), node)
                if name not in (*HEAD_SITES, "head_norm"):
                    why = f"'@' is only for q, k, v and head_norm; {name} does not hold heads"
                    self.refuse(why, node)
                node = left
        match node:
            case ast.BinOp(left=factor, op=ast.Mult(), right=norm) if self.is_scalar(factor):
                node, term = norm, Term(1, (factor,), norm)
        if not isinstance(node, ast.Name) or node.id in RESERVED - {"norm"}:
            self.refuse(f"{name} needs a norm: write norm or the name of a norm", node)
        self.plan.sites[name] = Site(node.id, share)
        self.read_scale(f"{name}.scale", [term])

    def is_norm(self, node: ast.AST) -> bool:
        """Returns whether the node is a norm of a stream. Its name is checked later."""
        others = self.is_scalar(node) or self.is_sub_layer(node) or name_of(node) in (READ, WRITE)
        return isinstance(node, ast.Call) and not others

    # --------------------------------------------------------------------------------- sub-layers

    def is_sub_layer(self, node: ast.AST) -> bool:
        return name_of(node) in ("f", *INSIDE)

    def is_branch(self, node: ast.expr) -> bool:
        """Returns whether the node is f(x), alone or in norms, which are at `out`, not `post`."""
        while isinstance(node, ast.Call) and self.is_norm(node):
            node = node.args[0] if node.args else node.func
        return self.is_sub_layer(node)

    def sub_layers(self, node: ast.AST) -> list[ast.Call]:
        calls = (part for part in ast.walk(node) if isinstance(part, ast.Call))
        return [call for call in calls if self.is_sub_layer(call)]

    def check_sub_layers(self, *wanted: str) -> None:
        """Each wanted sub-layer is called once in the equation, and no other is."""
        names = [name_of(call) for call in self.sub_layers(self.tree)]
        if sorted(names) != sorted(wanted):
            each = " and ".join(f"{name}(x)" for name in wanted)
            ours = [
                f"{our} for {name}"
                for name in called(self.text)
                for our in theirs(name, "placement.equation")
                if our in {*wanted, "norm"} - {name}
            ]
            near = f"did you mean {', '.join(ours)}? " if ours else ""
            self.refuse(f"{near}the equation must contain {each} exactly once; {BLOCK}")

    # -------------------------------------------------------------------------------------- errors

    def refuse(self, why: str, part: ast.AST | None = None) -> NoReturn:
        whole = self.text if len(self.text) <= 120 else f"{self.text[:117]}..."
        if part is None or self.source(part) == self.text:
            raise ValueError(f"'{whole}': {why}")
        raise ValueError(f"'{self.source(part)}' in '{whole}': {why}")

    def source(self, part: ast.AST) -> str:
        return " ".join((ast.get_source_segment(self.text, part) or ast.unparse(part)).split())


def parse(text: Any) -> ast.expr:
    """Returns the tree of an equation. Raises ValueError where Python cannot read the text."""
    try:
        tree = ast.parse(str(text).strip(), mode="eval").body
        ast.unparse(tree)  # a deeper tree would be too deep for every walk
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"it cannot be read: {getattr(error, 'msg', error)}") from None
    return tree


def canonical(text: str) -> str:
    """An equation without what changes nothing: blanks, and brackets that only group. A text that
    is not an equation, as in a damaged folder, stays as it is."""
    try:
        return ast.unparse(parse(text))
    except ValueError:
        return text


def name_of(node: ast.AST) -> str:
    """Returns the name of the called function, or an empty text."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return node.func.id if called else ""  # type: ignore[attr-defined]


def called(text: Any) -> list[str]:
    """Returns the names of the functions that an equation calls, each once. There are none where it
    cannot be read, which a `Reader` refuses."""
    try:
        return [*dict.fromkeys(filter(None, map(name_of, ast.walk(parse(text)))))]
    except ValueError:
        return []


def _sum_of(terms: list[Term]) -> str:
    """`1 - (0.3)`: the factors of a stream that several terms have."""
    text = ""
    for term in terms:
        product = " * ".join(f"({ast.unparse(factor)})" for factor in term.factors) or "1"
        text += f" {'-' if term.sign < 0 else '+'} {product}"
    return text.strip().removeprefix("+ ")
