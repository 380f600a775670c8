"""Refuses choices that contradict each other, each with one line that names the key."""

import inspect
from collections.abc import Collection

from transformer_norms.config.checks.formulas import check_formulas
from transformer_norms.config.tree import DEFAULTS, Config
from transformer_norms.errors import ConfigError
from transformer_norms.kinds import as_number, value_at
from transformer_norms.model.attention import ATTENTIONS
from transformer_norms.model.mlp import MLPS
from transformer_norms.model.placement import head_sites, latent_sites, read_placement
from transformer_norms.model.position import (
    POSITIONS,
    NoPosition,
    kv_sources,
    rotary_bases,
    rotary_fractions,
    scaling_factors,
    shared_blocks,
    sliding_windows,
)
from transformer_norms.model.settings import (
    MADE_BY,
    BlockSizes,
    block_sizes,
    block_values,
    head_sizes,
    site_width,
    value_factor,
)
from transformer_norms.model.sites import HEAD_SITES, LATENT_SITES, Site
from transformer_norms.names import unknown
from transformer_norms.norms import NORMS
from transformer_norms.norms.stated import check_width, is_fault


def refuse_contradictions(config: Config) -> None:
    """Raises ConfigError where a complete config contradicts itself."""
    for refuse in (
        _check_split,
        _check_biases,
        _check_attention,
        _check_latents,
        _check_values,
        _check_causal,
        _check_widths,
        check_formulas,
        _check_values_from_keys,
        _check_kv_from_block,
        _check_offered,
        _check_qk_clip,
        _check_compile,
    ):
        refuse(config)


def _check_split(config: Config) -> None:
    split, share = config.data.split, config.data.test_fraction
    separator = config.data.get("separator", "none") != "none"
    if config.data.get("val_paths", ()):
        for key, unset in (("split", "hash"), ("test_fraction", 0)):
            if (value := config.data[key]) != unset:
                raise ConfigError(
                    f"data.{key}: {value} is not allowed with data.val_paths, which is val: no "
                    "text of data.paths is cut off, and there is no test part"
                )
    if separator and split == "tail":
        raise ConfigError(
            "data.separator: is not allowed with data.split=tail, which reads one stretch of text; "
            "leave one of the two out"
        )
    if share and split != "tail":
        raise ConfigError(
            f"data.test_fraction: {share:g} is not allowed with data.split={split}, whose test "
            "part is as large as val; data.split=tail takes a test part from the end of train"
        )


def _check_biases(config: Config) -> None:
    """Raises ConfigError if a bias is asked for by name and can stand nowhere."""
    bias = config.architecture.bias
    roles = () if isinstance(bias, bool) else bias
    if "gate" in roles and not MLPS[config.mlp.type].gated:
        kind = config.mlp.type
        raise ConfigError(f"architecture.bias: gate is not allowed: a {kind} mlp has no gate")
    for role, key in MADE_BY.items():
        if role in roles and getattr(config.architecture, key) == "none":
            raise ConfigError(
                f"architecture.bias: {role} is not allowed where architecture.{key} is none"
            )
    if "head" in roles and config.architecture.tied:
        raise ConfigError("architecture.bias: head is not allowed where architecture.tied is true")


def _blocks(config: Config) -> list[BlockSizes]:
    """Returns the sizes of the blocks, each once where several are alike."""
    sizes = config.model
    return list(dict.fromkeys(block_sizes(sizes, i) for i in range(sizes.depth)))


def _check_latents(config: Config) -> None:
    """Raises ConfigError if a size inside attention is none, or a norm is to stand on a latent that
    there is not."""
    architecture = config.architecture
    try:
        blocks = [head_sizes(architecture, sizes) for sizes in _blocks(config)]
    except ValueError as error:
        raise ConfigError(str(error)) from None
    for inner in blocks:
        if config.position.type == "rope" and inner.rope_dim % 2:
            raise ConfigError(
                f"architecture.rope_dim: {inner.rope_dim} is odd, and position=rope turns pairs"
            )
    for name, _ in read_placement(config.placement).sites():
        if name in LATENT_SITES and (key := LATENT_SITES[name]) and not getattr(blocks[0], key):
            raise ConfigError(
                f"placement.equation: there is no latent for {name}, since architecture.{key} is "
                "none"
            )


def _check_values(config: Config) -> None:
    """Raises ConfigError if an option of the values has nothing to act on, or a gate has too few
    channels to read."""
    how, width = config.architecture, config.model.width
    if how.value_scale != 1 and how.value_residual == "none":
        raise ConfigError(
            f"architecture.value_scale: {as_number(how.value_scale)} is not allowed without "
            "architecture.value_residual, beside which it stands"
        )
    heads = [(sizes.kv_heads, head_sizes(how, sizes).value_dim) for sizes in _blocks(config)]
    if how.value_residual != "none" and len({*heads}) > 1:
        raise ConfigError(
            f"architecture.value_residual: {as_number(how.value_residual)} is not allowed where "
            "the values of blocks differ in size (model.kv_heads, model.head_dim): they are "
            "added to those of the first block"
        )
    if how.value_gate != "none" and how.value_embedding == "none":
        raise ConfigError(
            f"architecture.value_gate: {how.value_gate} is not allowed without "
            "architecture.value_embedding, whose rows it multiplies"
        )
    for key in ("value_gate", "smear"):
        if (channels := getattr(how, key)) != "none" and channels > width:
            raise ConfigError(
                f"architecture.{key}: {channels} is not allowed; x has model.width={width} channels"
            )


def _check_values_from_keys(config: Config) -> None:
    """Raises ConfigError if what W_k computes cannot be values, or W_v has a bias and stands
    nowhere."""
    how = config.architecture
    spec = how.values_from_keys
    marks = shared_blocks(spec, config.model.depth)
    for i, mark in enumerate(marks):
        sizes = block_sizes(config.model, i)
        inner = head_sizes(how, sizes)
        made = sizes.head_dim - inner.rope_dim
        if mark and made != inner.value_dim:
            raise ConfigError(
                f"architecture.values_from_keys: {as_number(spec)} is not allowed where a head's "
                f"values have {inner.value_dim} dimensions and W_k computes {made}; "
                f"architecture.value_dim={made} makes them as many"
            )
    if all(marks) and not isinstance(how.bias, bool) and "value" in how.bias:
        raise ConfigError(
            f"architecture.bias: value is not allowed where architecture.values_from_keys is "
            f"{as_number(spec)}"
        )


def _check_kv_from_block(config: Config) -> None:
    """Raises ConfigError if a block is to use keys and values that do not fit its queries, or that
    its own keys would change."""
    how, depth, rope = config.architecture, config.model.depth, config.position.type == "rope"
    bases, shares = rotary_bases(how.rope_base, depth), rotary_fractions(how.rope_fraction, depth)
    factors = scaling_factors(config.position.get("scaling"), depth)
    turns = [*zip(bases, shares, factors, strict=True)]
    for i, source in enumerate(kv_sources(how.kv_from_block, depth)):
        sizes, there = (block_sizes(config.model, at) for at in (i, source))
        inner, inner_there = (head_sizes(how, each) for each in (sizes, there))
        table = value_factor(how.value_embedding, block_values(config.model, i))
        for key, differs in (
            ("model.head_dim", sizes.head_dim != there.head_dim),
            ("model.kv_heads", sizes.kv_heads != there.kv_heads),
            ("architecture.value_dim", inner.value_dim != inner_there.value_dim),
            ("architecture.rope_dim", inner.rope_dim != inner_there.rope_dim),
            (
                "architecture.rope_base, rope_fraction or position.scaling",
                rope and turns[i] != turns[source],
            ),
            ("architecture.value_embedding", source != i and table),
        ):
            if differs:
                raise ConfigError(
                    f"architecture.kv_from_block: {as_number(how.kv_from_block)} is not allowed; "
                    f"block i={i} uses the keys and values of block {source}, "
                    f"and has {key} of its own"
                )


def _check_attention(config: Config) -> None:
    """Raises ConfigError if an option is set for which the chosen attention has no use."""
    unset = {f"architecture.{key}": DEFAULTS[key] for key in ("attention_cap", "attention_scale")}
    unset["model.dropout"] = 0
    kind = config.attention.type
    for key, reason in getattr(ATTENTIONS[kind], "refuses", {}).items():
        if key not in unset:
            raise ConfigError(f"attention={kind}: refuses: {unknown('key', key, unset)}")
        if (value := value_at(config, key)) != unset[key]:
            raise ConfigError(
                f"{key}: {as_number(value)} is not allowed with attention={kind}: {reason}"
            )


def _check_widths(config: Config) -> None:
    """Raises ConfigError if a norm cannot be built at the width of a site where it stands."""
    placement, norms = read_placement(config.placement), {"norm": config.norm, **config.norms}
    sites = [*placement.sites(), ("embed", Site(config.embed)), ("final", Site(config.final_norm))]
    sites += head_sites(config.qk_norm, config.v_norm).items()
    sites += latent_sites(config.architecture).items()
    blocks = [(sizes, head_sizes(config.architecture, sizes)) for sizes in _blocks(config)]
    for name, site in sites:
        word = config.qkv if name in HEAD_SITES and site.norm == "norm" else site.norm
        if word not in norms:  # none, and fixnorm, which is on the table
            continue
        widths = dict.fromkeys(site_width(name, site.share, *block) for block in blocks)
        try:
            for width in widths:
                check_width(norms[word].type, width, NORMS.maker(norms[word]).keywords)
        except ValueError as error:
            if is_fault(error):  # it ends its own run alone
                continue
            key = "norm." if word == "norm" else f"norm={word}: "
            raise ConfigError(f"{key}{error} (at {name})") from None
        except Exception:  # no refusal but a fault of a plugin, which ends its own run alone
            continue


def _check_qk_clip(config: Config) -> None:
    """Raises ConfigError if the largest logit is to be read where there is none."""
    kind, clip = config.attention.type, config.trainer.qk_clip
    if clip != "none" and not hasattr(ATTENTIONS[kind], "largest"):
        raise ConfigError(
            f"trainer.qk_clip: {clip:g} is not allowed with attention={kind}: it has no logits"
        )


def _check_offered(config: Config) -> None:
    """Raises ConfigError if a window, a chunk or a bias is set, and the chosen attention does not
    name it among its arguments, so that it could not act."""
    kind, sizes, how = config.attention.type, config.model, config.architecture
    biased = POSITIONS[config.position.type].bias is not NoPosition.bias
    chosen = {}
    for key in ("sliding_window", "attention_chunk"):
        windows = sliding_windows(spec := getattr(how, key), sizes.depth, sizes.context)
        chosen[key] = f"architecture.{key}: {as_number(spec)}", any(windows)
    chosen["position_bias"] = f"position={config.choices.position}", biased
    named = {name for base in ATTENTIONS[kind].__mro__ for name in _arguments(base)}
    for argument, (key, wanted) in chosen.items():
        if wanted and argument not in named:
            raise ConfigError(
                f"{key} is not allowed with attention={kind}: it takes no argument {argument}"
            )


def _arguments(kind: type) -> Collection[str]:
    """Returns the names of the arguments that a class itself states."""
    own = vars(kind).get("__init__")
    return inspect.signature(own).parameters if inspect.isfunction(own) else ()


def _check_causal(config: Config) -> None:
    trainer = config.trainer
    for name, norm in {"norm": config.norm, **config.norms}.items():
        causal = getattr(NORMS[norm.type], "causal", True)
        if not causal and trainer.batch_size * config.model.context == trainer.accumulation:
            raise ConfigError(
                f"trainer.batch_size: {trainer.batch_size} is not allowed: norm={norm.type} takes "
                "statistics over a micro-batch (batch_size / accumulation), which has one token"
            )
        if not causal and not config.norm.get("allow_noncausal"):
            where = "" if name == "norm" else f" ({name}, besides the run's norm)"
            raise ConfigError(
                f"norm: {norm.type}{where} takes its statistics over later tokens too, so that "
                "a causal model would be trained on what it must predict and judged without; "
                "norm=batchnorm norm.allow_noncausal=true trains it all the same"
            )


def _check_compile(config: Config) -> None:
    cut = {
        "parallel=fsdp": config.parallel.type == "fsdp",
        "trainer.activation_checkpointing=true": config.trainer.activation_checkpointing,
    }
    for key, typed in cut.items():
        if typed and config.trainer.compile == "whole":
            raise ConfigError(
                f"trainer.compile=whole: {key} needs trainer.compile=block, auto or none"
            )
