"""Analyses of trained models.

`subjects` gives every analysis its models and their text, `over_seeds` the differences of variants.
"""
