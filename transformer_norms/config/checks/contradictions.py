"""Refuses choices that contradict each other, each with one line that names the key."""

from collections.abc import Iterator

from transformer_norms.config.checks.formulas import check_formulas
from transformer_norms.config.tree import DEFAULTS, Config
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import as_number, value_at
from transformer_norms.model.architecture import MADE_BY, BlockChoices
from transformer_norms.model.attention import ATTENTIONS
from transformer_norms.model.attentions.options import arguments_of
from transformer_norms.model.mlp import MLPS
from transformer_norms.model.placement import attention_sites, read_placement
from transformer_norms.model.position import POSITIONS, NoPosition, scaling_factors
from transformer_norms.model.sites import HEAD_SITES, LATENT_SITES, Site, SubLayerPlan
from transformer_norms.names import unknown
from transformer_norms.norms import NORMS
from transformer_norms.norms.stated import check_width, is_fault


def refuse_contradictions(config: Config) -> None:
    """Raises ConfigError where a complete config contradicts itself."""
    check_formulas(config)
    blocks = config.blocks
    for line in (
        *_of_data(config),
        *_of_embedding(config),
        *_of_attention(config, blocks),
        *_of_values(config, blocks),
        *_of_shared_keys(config, blocks),
        *_of_later_tokens(config),
        *_of_trainer(config),
    ):
        raise ConfigError(line)
    _check_widths(config, blocks)


def _of_data(config: Config) -> Iterator[str]:
    split, share = config.data.split, config.data.test_fraction
    for key, unset in (("split", "hash"), ("test_fraction", 0)):
        if config.data.get("val_paths", ()) and (value := config.data[key]) != unset:
            yield f"data.{key}: {value} is not allowed with data.val_paths, which is all of val"
    if config.data.get("separator", "none") != "none" and split == "tail":
        yield "data.separator: is not allowed with data.split=tail, which reads one stretch of text"
    if share and split != "tail":
        yield f"data.test_fraction: {share:g} needs data.split=tail; data.split={split} has its own"


def _of_embedding(config: Config) -> Iterator[str]:
    if config.init.get("stream", "none") != "none" and config.embed != "none":
        yield f"init.stream: embed={config.embed} gives the embedded tokens their size already"


def _of_attention(config: Config, blocks: list[BlockChoices]) -> Iterator[str]:
    how, width, kind = config.architecture, config.model.width, config.attention.type
    unset = {f"architecture.{key}": DEFAULTS[key] for key in ("attention_cap", "attention_scale")}
    unset["model.dropout"] = 0
    for key, reason in getattr(ATTENTIONS[kind], "refuses", {}).items():
        if key not in unset:
            yield f"attention={kind}: refuses: {unknown('key', key, unset)}"
        elif (value := value_at(config, key)) != unset[key]:
            yield f"{key}: {as_number(value)} is not allowed with attention={kind}: {reason}"
    if config.position.type == "rope":
        for odd in (own.rope_dim for own in blocks if own.rope_dim % 2):
            yield f"architecture.rope_dim: {odd} is odd, and position=rope turns pairs"
    for block in (block for block in blocks if block.rope_dim >= block.sizes.head_dim):
        part = f"it is a part of model.head_dim={block.sizes.head_dim}, and smaller"
        yield f"architecture.rope_dim: {block.rope_dim} is not allowed; {part}"
    for name, _ in read_placement(config.placement).sites():
        key = LATENT_SITES.get(name)
        if key and not getattr(blocks[0], key):
            yield f"placement.equation: {name} has no latent, since architecture.{key} is none"
    for key in ("value_gate", "smear"):
        if (channels := getattr(how, key)) != "none" and channels > width:
            yield f"architecture.{key}: {channels} is not allowed; x has {width} (model.width)"
    named = arguments_of(ATTENTIONS[kind])
    chosen = {
        key: (f"architecture.{key}: {as_number(getattr(how, key))}", any(own))
        for key in ("sliding_window", "attention_chunk")
        if (own := [getattr(block, key) for block in blocks])
    }
    biased = POSITIONS[config.position.type].bias is not NoPosition.bias
    chosen["position_bias"] = f"position={config.choices.position}", biased
    for argument, (key, wanted) in chosen.items():
        if wanted and argument not in named:
            yield f"{key} is not allowed with attention={kind}: it takes no argument {argument}"


def _of_values(config: Config, blocks: list[BlockChoices]) -> Iterator[str]:
    """Yields where a bias or an option of the values has nothing to act on, or does not fit."""
    how = config.architecture
    absent = {
        role: f"architecture.{key} is none"
        for role, key in MADE_BY.items()
        if getattr(how, key) == "none"
    }
    absent |= {"head": "architecture.tied is true"} if how.tied else {}
    if not MLPS[config.mlp.type].gated:
        absent["gate"] = f"mlp={config.choices.mlp} has no gate"
    shares = as_number(how.values_from_keys)
    if all(block.values_from_keys for block in blocks):
        absent["value"] = f"architecture.values_from_keys is {shares}"
    for role in () if isinstance(how.bias, bool) else how.bias:
        if role in absent:
            yield f"architecture.bias: {role} is not allowed where {absent[role]}"
    if how.value_scale != 1 and how.value_residual == "none":
        yield f"architecture.value_scale: {as_number(how.value_scale)} needs a value_residual"
    if how.value_gate != "none" and how.value_embedding == "none":
        yield f"architecture.value_gate: {how.value_gate} needs a value_embedding"
    sizes = {(block.sizes.kv_heads, block.value_dim) for block in blocks}
    if how.value_residual != "none" and len(sizes) > 1:
        which = f"architecture.value_residual: {as_number(how.value_residual)}"
        yield f"{which} needs values of one size in all blocks (model.kv_heads, model.head_dim)"
    for own in (block for block in blocks if block.values_from_keys):
        if (made := own.sizes.head_dim - own.rope_dim) != own.value_dim:
            yield (
                f"architecture.values_from_keys: {shares} is not allowed where a head has "
                f"{own.value_dim} values and W_k computes {made} (architecture.value_dim={made})"
            )


def _of_shared_keys(config: Config, blocks: list[BlockChoices]) -> Iterator[str]:
    """Yields where a block uses keys and values that do not fit its queries, or that its own keys
    would change."""
    how, rope = config.architecture, config.position.type == "rope"
    factors = scaling_factors(config.position.get("scaling"), config.model.depth)
    for i, own in enumerate(blocks):
        source = own.kv_from_block
        there = blocks[source]
        turns, turns_there = (
            (block.rope_base, block.rope_fraction, factor) if rope else ()
            for block, factor in ((own, factors[i]), (there, factors[source]))
        )
        for key, differs in (
            ("model.head_dim", own.sizes.head_dim != there.sizes.head_dim),
            ("model.kv_heads", own.sizes.kv_heads != there.sizes.kv_heads),
            ("architecture.value_dim", own.value_dim != there.value_dim),
            ("architecture.rope_dim", own.rope_dim != there.rope_dim),
            ("architecture.rope_base, rope_fraction or position.scaling", turns != turns_there),
            ("architecture.value_embedding", source != i and own.value_embedding),
        ):
            if differs:
                yield (
                    f"architecture.kv_from_block: {as_number(how.kv_from_block)} is not allowed; "
                    f"block i={i} uses the keys and values of block {source}, "
                    f"and has its own {key}"
                )


def _of_later_tokens(config: Config) -> Iterator[str]:
    trainer = config.trainer
    for name, norm in {"norm": config.norm, **config.norms}.items():
        causal = getattr(NORMS[norm.type], "causal", True)
        if not causal and trainer.batch_size * config.model.context == trainer.accumulation:
            yield (
                f"trainer.batch_size: {trainer.batch_size} is not allowed: norm={norm.type} takes "
                "statistics over a micro-batch (batch_size / accumulation), which has one token"
            )
        if not causal and not config.norm.get("allow_noncausal"):
            where = "" if name == "norm" else f" ({name}, besides the run's norm)"
            yield (
                f"norm: {norm.type}{where} takes its statistics over later tokens too, which a "
                "causal model must predict; norm=batchnorm norm.allow_noncausal=true trains it"
            )


def _of_trainer(config: Config) -> Iterator[str]:
    kind, trainer = config.attention.type, config.trainer
    if trainer.horizons and trainer.steps not in trainer.horizons:
        which = ", ".join(map(str, trainer.horizons))
        line = f"trainer.steps: {trainer.steps} is not one of trainer.branches, {which}"
        yield f"{line}; type one of them, or trainer.branches=none"
    if trainer.qk_clip != "none" and not hasattr(ATTENTIONS[kind], "largest"):
        yield f"trainer.qk_clip: {trainer.qk_clip:g} is not allowed; attention={kind} has no logits"
    if (every := trainer.averaging[1]) > trainer.steps:
        yield f"trainer.average.every: {every} is not allowed; the run has {trainer.steps} steps"
    if trainer.device == "mps" and trainer.precision == "fp64":
        yield "trainer.precision: fp64 is not allowed with trainer.device=mps, which has no float64"
    if trainer.device == "mps" and config.parallel.type != "none":
        yield f"parallel: {config.parallel.type} is not allowed with trainer.device=mps"
    cut = {
        "parallel=fsdp": config.parallel.type == "fsdp",
        "trainer.activation_checkpointing=true": trainer.activation_checkpointing,
    }
    for key in (key for key, typed in cut.items() if typed and trainer.compile == "whole"):
        yield f"trainer.compile=whole: {key} needs trainer.compile=block, auto or none"


def _check_widths(config: Config, blocks: list[BlockChoices]) -> None:
    """Raises ConfigError if a norm cannot be built at the width of its site."""
    placement, norms = read_placement(config.placement), {"norm": config.norm, **config.norms}
    sites = [*placement.sites(), ("embed", Site(config.embed)), ("final", Site(config.final_norm))]
    sites += attention_sites(SubLayerPlan(), config).items()
    for name, site in sites:
        word = config.qkv if name in HEAD_SITES and site.norm == "norm" else site.norm
        if word not in norms:  # none, and fixnorm, which is on the table
            continue
        widths = dict.fromkeys(own.width_at(name, site.share) for own in blocks)
        try:
            for width in widths:
                check_width(norms[word].type, width, NORMS.maker(norms[word]).keywords)
        except Exception as error:
            if not isinstance(error, ValueError) or is_fault(error):
                continue  # a fault of a plugin ends its own run alone
            key = "norm." if word == "norm" else f"norm={word}: "
            raise ConfigError(f"{key}{error} (at {name})") from None
