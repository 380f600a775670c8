"""Analyses beside training, each a command: `python -m transformer_norms.analysis.NAME`.

Each prints a table and writes files. commands/dispatch.py lists them; those of trained models lie
in trained/, but for norm_removal.
"""
