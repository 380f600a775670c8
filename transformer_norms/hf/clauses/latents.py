"""The clause of attention through latents, which DeepSeek has."""

import math
from typing import Any

from transformer_norms.hf.clauses.general import Clause, Keys, equal, unsaid
from transformer_norms.hf.clauses.rotation import ROTARY, mscale, write_turn
from transformer_norms.hf.facts import Facts, first, same


def _read_latents(config: Any) -> Keys:
    for key in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"):
        if not (size := getattr(config, key)):
            raise unsaid(key, size)
    if config.q_lora_rank == 0:
        raise unsaid("q_lora_rank", 0, "; None leaves the latent out")
    if config.qk_rope_head_dim % 2:
        raise unsaid("qk_rope_head_dim", config.qk_rope_head_dim, ": dimensions turn in pairs")
    if config.rms_norm_eps != 1e-6:
        given = f"{config.rms_norm_eps:g}"
        raise unsaid("rms_norm_eps", given, ": the norms on latents keep 1e-06")
    equal("num_key_value_heads", "num_attention_heads").read(config)
    equal("head_dim", "qk_rope_head_dim").read(config)
    head_dim, rope = config.qk_nope_head_dim + config.qk_rope_head_dim, config.rope_parameters
    factor = mscale(rope.get("factor", 1), rope.get("mscale_all_dim") or 0)
    return {
        **ROTARY.read(config),
        "model.head_dim": head_dim,
        "architecture.attention_scale": head_dim**-0.5 * factor * factor,
        "architecture.q_rank": config.q_lora_rank or "none",
        "architecture.kv_rank": config.kv_lora_rank,
        "architecture.rope_dim": config.qk_rope_head_dim,
        "architecture.value_dim": config.v_head_dim,
    }


def _write_latents(facts: Facts) -> dict[str, Any]:
    head_dim = first(facts["model.head_dim"])
    keys = ("q_rank", "kv_rank", "rope_dim", "value_dim")  # 0 for none
    sizes = {key: first(facts[f"architecture.{key}"]) for key in keys}
    rope, scale = write_turn(facts), first(facts["architecture.attention_scale"])
    if "factor" in rope and isinstance(scale, float) and not same(scale, head_dim**-0.5):
        log = 0.1 * math.log(rope["factor"])
        rope["mscale_all_dim"] = (math.sqrt(abs(scale) * math.sqrt(head_dim)) - 1) / log
    return {
        "rope_parameters": rope,
        "num_key_value_heads": facts["model.heads"],
        "q_lora_rank": sizes["q_rank"] or None,
        "kv_lora_rank": sizes["kv_rank"],
        "qk_rope_head_dim": sizes["rope_dim"],
        "qk_nope_head_dim": head_dim - sizes["rope_dim"],
        "v_head_dim": sizes["value_dim"] or head_dim,
    }


# Attention through latents, with one key of rope for all heads, by one base      DeepSeek-V2
LATENTS = Clause(_read_latents, _write_latents)
