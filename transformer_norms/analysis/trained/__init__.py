"""Analyses of trained models.

`subjects` gives every analysis its models and their text, `measuring` goes through them, and
`over_seeds` has the differences of variants.
"""
