"""Converts a transformers model to this model and back, weights included. transformers is optional.

    from transformer_norms.hf import from_hf, to_hf
    transformer-norms export RUN OUT                  a run as a folder that transformers loads

families.py has the clauses for the keys of each family's config, tensors.yaml the names of its
tensors. A family can say a model if the config that it writes for the model's facts is read as
these facts.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_norms.hf.conversion import from_hf as from_hf
    from transformer_norms.hf.conversion import to_hf as to_hf


def __getattr__(name: str) -> Any:
    """Both are imported when they are first used: the command's help needs no torch."""
    if name not in ("from_hf", "to_hf"):
        raise AttributeError(f"module 'transformer_norms.hf' has no attribute '{name}'")
    from transformer_norms.hf import conversion

    return getattr(conversion, name)
