"""Converts a transformers model to this model and back, weights included. transformers is optional.

    from transformer_norms.hf import from_hf, to_hf
    python -m transformer_norms.hf FOLDER OUT         a run folder as one that transformers loads

families.py is the table of families: clauses for the keys of a config, names for the tensors. A
family can say a model if the config that it writes for the model's facts is read as these facts.
"""

from transformer_norms.hf.conversion import from_hf as from_hf
from transformer_norms.hf.conversion import to_hf as to_hf
