"""Analyses, each a command: `transformer-norms analysis NAME`.

outcome.py says what an analysis declares and computes, rendering.py shows it, command.py runs it.
Analyses that reproduce one paper are in the folder experiments/analyses of the repository.
"""
