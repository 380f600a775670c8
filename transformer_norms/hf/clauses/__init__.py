"""Clauses: what a key, or some keys, of a transformers config say, and how they are written.

general.py has the class and the clauses that need a key's name alone.
"""
