"""The settings that a model is built from, by the groups of a config. No torch here.

The groups `architecture` and `model` are declared in architecture.py and sizes.py.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from transformer_norms.kinds import Mark, Number, Seed, Text, Values, node
from transformer_norms.model.architecture import PER_BLOCK, Architecture, BlockChoices
from transformer_norms.model.placement import Placement
from transformer_norms.model.sizes import Sizes, block_sizes, block_values


def _check_rms(value: Any) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not isinstance(value, str) and not (number and 0 < value <= 1e6):
        raise ValueError("it should be none, a number above 0, or a formula such as 1/sqrt(d)")
    return value


Stream = Annotated[Any, AfterValidator(_check_rms)]


@node
class NormFile:
    """The keys of a norm's file besides the settings of its class. `unverified` says what could not
    be read in the paper or its code."""

    formula: Annotated[Text, Mark.NOT_IN_IDENTITY] = ""
    source: Annotated[Text, Mark.NOT_IN_IDENTITY] = ""
    unverified: Annotated[Text, Mark.NOT_IN_IDENTITY] = ""
    brings: Annotated[Mapping[str, Any], Mark.NOT_IN_IDENTITY] = field(default_factory=dict)


@node
class InitFile:
    """The keys of an init besides its rule. `stream` is the rms of the embedded tokens that enter
    the first block, before positions are added; it is reached by the embedding table or by the
    scale of the embedded tokens (`stream_by`). `brings` are choices that hold unless the user, a
    preset, the placement or the norm made them; `tied_logit_scale` is the logit_scale of a tied
    head. `unverified` says what could not be read in the authors' code or paper. `lr_factor` is
    the auto of optimizer.lr_factor, for the groups of parameters that it names. `otherwise` is the
    rule that auto is where nothing brings one."""

    otherwise: Annotated[Text, Mark.NOT_IN_IDENTITY] = ""
    stream: Stream = "none"
    stream_by: Literal["table", "scale"] = "table"
    source: Annotated[Text, Mark.NOT_IN_IDENTITY] = ""
    unverified: Annotated[Text, Mark.NOT_IN_IDENTITY] = ""
    lr_factor: Annotated[Mapping[str, Number | Text], Mark.NOT_IN_IDENTITY] = field(
        default_factory=dict
    )
    brings: Annotated[Mapping[str, Any], Mark.NOT_IN_IDENTITY] = field(default_factory=dict)


@node
class MLPFile:
    """The keys of an mlp's file besides the settings of its class."""

    activation: Text


@node
class AttentionFile:
    """The keys of an attention's file besides the settings of its class."""

    source: Annotated[Text, Mark.NOT_IN_IDENTITY] = ""
    unverified: Annotated[Text, Mark.NOT_IN_IDENTITY] = ""


@node
class ModelConfig:
    """The part of a config that `build_model` reads. A `Values` node holds the `type` of a
    registered class, its settings, and the keys that the other class of the annotation declares."""

    norm: Annotated[Values, NormFile]
    norms: Annotated[Values, NormFile, Mark.BY_NAME, Mark.DERIVED]  # the others that some site has
    placement: Annotated[Values, Placement]
    init: Annotated[Values, InitFile]
    position: Values
    attention: Annotated[Values, AttentionFile]
    mlp: Annotated[Values, MLPFile]
    embed: Text  # the norm on the embedded tokens: none, fixnorm, norm, or a name of `norms`
    final_norm: Text  # likewise, before the head
    qk_norm: Text  # none, a share of gains, l2, or a name of `norms`
    v_norm: Text  # likewise
    qkv: Annotated[Text, Mark.DERIVED]  # the norm at q, k and v where these have the run's
    architecture: Architecture
    model: Sizes
    seed: Seed

    @property
    def blocks(self) -> list[BlockChoices]:
        """Returns the plain numbers of each block. ValueError where one is not allowed."""
        sizes = self.model
        values = [block_values(sizes, i) for i in range(sizes.depth)]
        how = self.architecture
        each = {key: one.numbers(getattr(how, key), values) for key, one in PER_BLOCK.items()}
        return [
            BlockChoices(i, block_sizes(sizes, i), here, **{key: each[key][i] for key in each})
            for i, here in enumerate(values)
        ]
