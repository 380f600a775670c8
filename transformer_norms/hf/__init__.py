"""A transformers model <-> this model, weights included. transformers itself is optional.

    from transformer_norms.hf import from_hf, to_hf
    python -m transformer_norms.hf FOLDER OUT         a run folder as one that transformers loads

families.py has a clause for each key of a config, tables.py a name for each tensor. A family can
say a model where reading the config that it writes gives the facts that it was written from.
"""

from transformer_norms.hf.conversion import from_hf as from_hf
from transformer_norms.hf.conversion import to_hf as to_hf
