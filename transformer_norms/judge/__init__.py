"""Judges a series of proposed changes under one error rate. decision.py is read first."""
