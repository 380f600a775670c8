"""Analyses of trained models: what a model does with its norms and with its depth.

`subjects` gives every analysis its models and their text, `over_seeds` the tables over seeds.
"""
