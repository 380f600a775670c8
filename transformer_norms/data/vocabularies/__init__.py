"""Vocabularies that were made elsewhere."""
