"""These clauses refuse a config whose blocks have experts: only dense mlps are built here."""

from collections.abc import Callable, Iterable
from typing import Any

from transformer_norms.hf.clauses.general import Clause, Keys


def dense(
    key: str, experts: Callable[[Any, int], Iterable[int]], written: Callable[[int], Any]
) -> Clause:
    """`experts` are the blocks with experts of a config that has so many blocks. `written` is the
    value of `key` that leaves none of so many."""

    def read(config: Any) -> Keys:
        if blocks := [*experts(config, config.num_hidden_layers)]:
            given = f"{key}={getattr(config, key)}"
            raise ValueError(f"{given}: block {min(blocks)} has experts, which are not built")
        return {}

    return Clause(read, lambda facts: {key: written(facts["model.depth"])})


# Every block has a dense mlp      Qwen3-Next
DENSE = dense(
    "mlp_only_layers",
    lambda config, depth: {*range(depth)} - {*config.mlp_only_layers} if config.num_experts else (),
    lambda depth: [*range(depth)],
)
# The first blocks have a dense mlp, here all      DeepSeek-V2
FIRST_DENSE = dense(
    "first_k_dense_replace",
    lambda config, depth: range(config.first_k_dense_replace or 0, depth),
    lambda depth: depth,
)
NO_EXPERTS = dense("moe_layers", lambda config, depth: config.moe_layers, lambda depth: [])
