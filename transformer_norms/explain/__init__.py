"""A config in words and as a drawing: python -m transformer_norms.explain OVERRIDES"""
