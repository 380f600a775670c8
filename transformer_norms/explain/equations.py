"""A built model as equations, in the words of the placements' own."""

import ast
from typing import Any

from transformer_norms.explain.anatomy import Anatomy, BlockAnatomy
from transformer_norms.explain.reading import Factor, Reader, Standing
from transformer_norms.model.block import Join, twice
from transformer_norms.model.position import NoPosition
from transformer_norms.model.sites import REST_OF_B
from transformer_norms.model.transformer import Transformer

INNER = ("q", "k", "v", "head_norm", "ctx", "mid")


def block_equations(block: BlockAnatomy) -> dict[str, str]:
    """What the block computes, part by part, named as in its placement's `equation`."""
    parts = block.parts
    if block.topology == "parallel":
        return {"block": _parallel(block)}
    if block.topology == "dual":
        return {
            name: f"{_normed(of.sites.get('post'), f'x + {update(of)}')}, r + {update(of)}"
            for name, of in parts.items()
        }
    return {name: _serial(of) for name, of in parts.items()}


def update(of: Anatomy, f: str = "f", x: str = "x") -> str:
    """What a sub-layer adds to the stream."""
    return _times(of.factors.get("b"), _branch(of, f, x))


def _branch(of: Anatomy, f: str, x: str) -> str:
    arguments = [_normed(of.sites.get("pre"), x), *_inside(of)]
    return _normed(of.sites.get("out"), f"{f}({', '.join(arguments)})")


def _serial(of: Anatomy) -> str:
    a, b = of.factors.get("a"), of.factors.get("b")
    if a is not None and a.formula == REST_OF_B:
        step = _branch(of, "f", "x")
        total = f"x + {_times(b, f'({step} - x)')}"
    else:
        total = f"{_times(a, 'x')} + {update(of)}"
    return _normed(of.sites.get("post"), total + " + start" * of.start)


def _parallel(block: BlockAnatomy) -> str:
    attention, mlp = block.parts["attention"], block.parts["mlp"]
    if not block.sites:
        return f"x + {update(attention, 'attention')} + {update(mlp, 'mlp')}"
    h = f"h := {_normed(block.sites.get('pre'), 'x')}"
    bare = "pre" not in attention.sites
    first = update(attention, "attention", x=h if bare else f"({h})")
    second = update(mlp, "mlp", x="h")
    return f"x + {first} + {second}"


def _inside(of: Anatomy) -> list[str]:
    found = []
    for site in INNER:
        standing = of.sites.get(site)
        if standing is not None:
            found.append(f"{site}={_value(standing)}")
    found += [f"{key}={key}" for key in ("head_scale", "hidden_scale") if key in of.factors]
    if of.cap is not None:
        found.append(f"cap={of.cap:g}")
    return found


def _value(standing: Standing) -> str:
    """What a site is given: with a learned scale as well, its own name stands for both."""
    if standing.scale is None:
        return standing.name
    own = f"{_written(standing.scale)} * {standing.name}"
    return standing.site if standing.scale.learned else own


def _normed(standing: Standing | None, inner: str) -> str:
    if standing is None:
        return inner
    text = f"{standing.name}({inner})"
    if standing.scale is None:
        return text
    written = _written(standing.scale)
    if written.startswith("1/"):
        return f"{text} / {written.removeprefix('1/')}"
    return f"{written} * {text}"


def _times(factor: Factor | None, text: str) -> str:
    if factor is None:
        return text
    written = _written(factor)
    return f"({written}) * {text}" if _is_sum(written) else f"{written} * {text}"


def _written(factor: Factor) -> str:
    """A learned number by its symbol, a constant by its formula."""
    return factor.symbol.replace(" ", "_") if factor.learned else factor.formula


def _is_sum(text: str) -> bool:
    tree = ast.parse(text, mode="eval").body
    return isinstance(tree, ast.BinOp) and isinstance(tree.op, (ast.Add, ast.Sub))


def same(one: str, other: str) -> bool:
    """Whether two equations are the same but for blanks and parentheses."""
    return ast.dump(ast.parse(one, mode="eval")) == ast.dump(ast.parse(other, mode="eval"))


def ends(reader: Reader, model: Transformer) -> dict[str, str]:
    """How tokens become the stream, and the stream logits."""
    architecture, width = reader.config["architecture"], model.embedding.weight.shape[1]

    def number(symbol: str, thing: Any) -> Factor | None:
        return reader.factor(symbol, thing, architecture[symbol], reader.values)

    def norm(site: str, module: Any) -> Standing | None:
        return reader.standing(site, module, width)

    rows = norm("rows", model.rows)
    x = f"{_normed(rows, 'E[tokens]')}"
    x = _times(number("embed_scale", model.scale), x)
    if type(model.position).forward is not NoPosition.forward:
        x += " + P[time]"
    x = _normed(norm("embed", model.embed), x)
    final = norm("final", model.final)
    last = f"x + {_normed(final, 'r')}" if isinstance(model.final, Join) else _normed(final, "x")
    head = _normed(rows, "E" if model.head is None else "W")
    logits = f"{head} @ ({last})" if isinstance(model.final, Join) else f"{head} @ {last}"
    logits = _times(number("logit_scale", model.logit_scale), logits)
    cap = getattr(model.cap, "cap", None)
    if cap is not None:
        logits = f"{cap:g} * tanh({logits} / {cap:g})"
    stream = "x = r" if model.enter is twice else "x"
    return {"start": f"{stream} = {x}", "end": f"logits = {logits}"}
