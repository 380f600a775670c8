"""A clause reads and writes a part of the config of a transformers family.

general.py has the class, and the clauses that many families share.
"""
