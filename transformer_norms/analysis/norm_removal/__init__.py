"""python -m transformer_norms.analysis.norm_removal RUN ...      a trained model without its norms

A norm's division by each token's own length becomes a division by one number, one norm after the
other while the model is tuned on (`freezing`, `tuning`); what is then left of a norm is a matrix,
which the weights that read it take in (`folding`). Baroni et al. 2025, arXiv:2507.02559, after
Heimersheim 2024, arXiv:2409.13710, who did it to GPT-2.
"""
