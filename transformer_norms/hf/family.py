"""A family of transformers: what its configs say, and what it calls our tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformer_norms.hf.clauses import Clause
from transformer_norms.hf.facts import Facts, completed
from transformer_norms.hf.weights import Line


@dataclass(frozen=True)
class Family:
    """`dropouts` are its keys where they act in all the places that ours do."""

    model_type: str
    clauses: Sequence[Clause]
    table: Sequence[Line]
    dropouts: Sequence[str] = ()

    def read(self, config: Any) -> Facts:
        """The facts of one of its configs; ValueError for what has no counterpart here."""
        facts: Facts = {}
        for clause in self.clauses:
            facts |= clause.read(config)
        return completed(facts)

    def write(self, facts: Facts) -> dict[str, Any]:
        """The config that says them, as far as it can: `read` shows what it cannot."""
        keys: dict[str, Any] = {}
        for clause in self.clauses:
            keys |= clause.write(facts)
        return keys
