"""The clause of attention through latents, which DeepSeek has."""

from typing import Any

from transformer_norms.hf.clauses.general import Clause
from transformer_norms.hf.facts import LATENT_KEYS, Facts, first, own_value_dim


def _read_latents(config: Any) -> Facts:
    for key in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"):
        if not (size := getattr(config, key)):
            raise ValueError(f"{key}={size} has no counterpart here")
    if config.q_lora_rank == 0:
        raise ValueError("q_lora_rank=0 has no counterpart here; None leaves the latent out")
    if config.qk_rope_head_dim % 2:
        raise ValueError(
            f"qk_rope_head_dim={config.qk_rope_head_dim} has no counterpart here: dimensions "
            "turn in pairs"
        )
    if config.rms_norm_eps != 1e-6:
        raise ValueError(
            f"rms_norm_eps={config.rms_norm_eps:g} has no counterpart here: the norms on latents "
            "keep 1e-06"
        )
    if config.num_key_value_heads != config.num_attention_heads:
        raise ValueError(
            f"num_key_value_heads={config.num_key_value_heads} has no counterpart here: it is not "
            f"num_attention_heads={config.num_attention_heads}"
        )
    head_dim = config.qk_nope_head_dim + config.qk_rope_head_dim
    return {
        "model.head_dim": head_dim,
        "architecture.q_rank": config.q_lora_rank or 0,
        "architecture.kv_rank": config.kv_lora_rank,
        "architecture.rope_dim": config.qk_rope_head_dim,
        "architecture.value_dim": own_value_dim(config.v_head_dim, head_dim),
    }


def _write_latents(facts: Facts) -> dict[str, Any]:
    head_dim = first(facts["model.head_dim"])
    sizes = {key: first(facts[f"architecture.{key}"]) for key in LATENT_KEYS}
    return {
        "num_key_value_heads": facts["model.heads"],
        "q_lora_rank": sizes["q_rank"] or None,
        "kv_lora_rank": sizes["kv_rank"],
        "qk_rope_head_dim": sizes["rope_dim"],
        "qk_nope_head_dim": head_dim - sizes["rope_dim"],
        "v_head_dim": sizes["value_dim"] or head_dim,
    }


# Attention through latents, with one key of rope for all heads      DeepSeek-V2
LATENTS = Clause(_read_latents, _write_latents)
