"""python -m transformer_norms.explain OVERRIDES      what a config makes, read off its model"""
