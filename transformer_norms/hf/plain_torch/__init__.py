"""Writes a run as one file of plain torch, with its weights and a card."""
