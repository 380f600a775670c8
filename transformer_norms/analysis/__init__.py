"""Analyses beside training, each a command: `python -m transformer_norms.analysis.NAME`.

init_gradients, invariances and norm_removal are the commands; each prints a table and writes files.
"""
