"""One block on its own, from its equation: for a notebook, or a model that is not built here."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from jaxtyping import Float
from torch import Tensor, nn

from transformer_norms.config.building import build_position
from transformer_norms.config.compose import compose
from transformer_norms.config.overrides import as_typed
from transformer_norms.config.tree import Config
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import as_number, plain
from transformer_norms.model.architecture import GIVEN
from transformer_norms.model.assembly import Assembly
from transformer_norms.model.constraint import CONSTRAINTS
from transformer_norms.model.initialization import rule_of
from transformer_norms.model.placement import read_placement
from transformer_norms.model.position import NoPosition

Stream = Float[Tensor, "batch time width"]
Equation = str | Mapping[str, Any]


class Block(nn.Module):
    """Causal attention and an mlp, joined as an equation says: [batch, time, width] to the same.

        block = Block("x + f(norm(x))", width=64, heads=4)
        y = block(x)

    Its module tree is that of a block of `build_model`, and so are its weights.
    """

    def __init__(
        self,
        equation: Equation,
        width: int,
        heads: int,
        *,
        norm: str | Callable[[int], nn.Module] | None = None,
        mlp: str | None = None,
        position: str | None = None,
        depth: int = 1,
        index: int = 0,
        learned: Mapping[str, Mapping[str, Any]] | None = None,
        where: Sequence[Mapping[str, Any]] | None = None,
        settings: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        """Builds block `index` of the model of `depth` blocks that an equation describes.

        `equation` is one of
            "x + f(norm(x))"                                             for attention and mlp
            {"attention": "...", "mlp": "..."}                           one for each
            "x + attention(h := norm(x)) + mlp(h)"                       side by side
            {"x": "norm(x + f(x))", "r": "r + f(x)", "end": "x + norm(r)"}     two streams
            "sandwich"                                                   the name of a placement
            {"equation": ..., "learned": ..., "where": ...}              a placement's YAML, read
        `norm` is a name such as "layernorm", or anything that is called as norm(width), such as
        torch.nn.LayerNorm. `mlp` and `position` are names. `settings` are further KEY=VALUE of
        `compose`, such as "model.kv_heads=2". All else is what `python train.py` takes.
        `learned` and `where` are those of a placement's YAML.

        The weights are drawn as `build_model` draws them, by the placement's own rule of
        initialization. If the placement constrains weights (ngpt), call block.constrain(block)
        after every optimizer step. Raises ConfigError, one line.
        """
        super().__init__()
        chosen: dict[str, Any] = {
            "norm": None if callable(norm) else norm,
            "mlp": mlp,
            "position": position,
            "model.width": width,
            "model.heads": heads,
            "model.depth": depth,
            "seed": seed,
            **_placement(equation, {"learned": learned, "where": where}),
        }
        typed = [as_typed(key, plain(item)) for key, item in chosen.items() if item is not None]
        config = compose([*typed, *settings], device="cpu")
        if not 0 <= index < depth:
            raise ConfigError(f"index={index}: depth={depth} has the blocks 0 to {depth - 1}")
        position_of_tokens = _position(config)
        assembly = Assembly(config, position_of_tokens, norm if callable(norm) else None)
        self.block, self.position = assembly(index), position_of_tokens
        # The names of its weights in the model: they are drawn by name.
        named = nn.ModuleDict({"blocks": nn.ModuleDict({str(index): self.block})})
        rule_of(config.init).apply(named, config.seed, config.model)
        self.constrain = CONSTRAINTS[assembly.placement.weight_constraint]
        self.constrain(self.block)
        # The final norm is not the block's, unless the equation states how the streams end.
        final = config.final_norm if assembly.placement.default.end else "none"
        self.enter, self.leave = assembly.ends(assembly.end_norm("final", final))

    def forward(self, x: Stream, x0: Stream | None = None) -> Stream:
        """Returns the stream after the block. `x0` are the embedded tokens, where the equation
        names them; a block alone takes x for them.

        Two streams both begin as x, and meet as the equation of the `end` says. Streams of a
        connection enter and leave as it says.
        """
        angles = self.position.angles(0, x.shape[1])
        streams = self.block(self.enter(x), x if x0 is None else x0, angles, None)
        return cast(Tensor, self.leave(streams))


def _placement(equation: Equation, more: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys for an equation, a placement's name or its YAML, and for what was given
    with it."""
    given = {key: item for key, item in more.items() if item is not None}
    if isinstance(equation, Mapping) and "equation" in equation:
        about = ("source", "unverified")  # which no one types
        given = {key: item for key, item in equation.items() if key not in about} | given
    elif not (isinstance(equation, str) and equation.isidentifier()):
        given["equation"] = equation
    keys = {f"placement.{key}": item for key, item in given.items()}
    return keys if "equation" in given else {"placement": equation, **keys}


def _position(config: Config) -> NoPosition:
    """Returns what gives tokens their positions. Raises ConfigError for a choice whose input comes
    from elsewhere in a model."""
    position, choices = build_position(config), config.choices
    connection = read_placement(config.placement).connection
    elsewhere = {
        f"position={choices.position}": type(position).forward is not NoPosition.forward,
        f"placement={choices.placement}": connection.get("inputs"),
    }
    for key in GIVEN:
        value = getattr(config.architecture, key)
        elsewhere[f"architecture.{key}: {as_number(value)}"] = value != "none"
    for choice in (choice for choice, needed in elsewhere.items() if needed):
        raise ConfigError(f"{choice} is not allowed in a block alone, which is given x alone")
    return position
