"""These clauses refuse a config whose blocks have experts: only dense mlps are built here."""

from typing import Any

from transformer_norms.hf.clauses.general import Clause
from transformer_norms.hf.facts import Facts


def _read_dense(config: Any) -> Facts:
    blocks = range(config.num_hidden_layers)
    if config.num_experts > 0 and (more := set(blocks) - set(config.mlp_only_layers)):
        raise ValueError(
            f"mlp_only_layers: block {min(more)} is not in it, and experts are not built"
        )
    return {}


# Every block has a dense mlp      Qwen3-Next
DENSE = Clause(_read_dense, lambda facts: {"mlp_only_layers": [*range(facts["model.depth"])]})


def _read_first_dense(config: Any) -> Facts:
    dense = config.first_k_dense_replace or 0
    if dense < config.num_hidden_layers:
        raise ValueError(
            f"first_k_dense_replace={dense}: block {dense} has experts, which are not built"
        )
    return {}


# The first blocks have a dense mlp, here all      DeepSeek-V2
FIRST_DENSE = Clause(
    _read_first_dense, lambda facts: {"first_k_dense_replace": facts["model.depth"]}
)


def _read_no_experts(config: Any) -> Facts:
    if config.moe_layers:
        raise ValueError(
            f"moe_layers: block {min(config.moe_layers)} is in it, and experts are not built"
        )
    return {}


NO_EXPERTS = Clause(_read_no_experts, lambda facts: {"moe_layers": []})
