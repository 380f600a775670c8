"""Questions beside training: python -m transformer_norms.analysis.NAME"""
