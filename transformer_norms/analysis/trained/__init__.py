"""Analyses of trained models.

`subjects` reads a model and its text, `measuring` goes through the models that were typed and
compares variants, and `tuned_models` tunes changed models on.
"""
