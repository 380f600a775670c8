"""python -m transformer_norms.analysis.norm_removal RUN ...      a trained model without its norms

A norm's division by each token's own length becomes a division by one number, one norm after the
other while the model is tuned on (`freezing`, `tuning`); what is then left of a norm is a matrix,
which the weights that read it take in (`folding`). Baroni et al. 2025, arXiv:2507.02559, after
Heimersheim 2024, arXiv:2409.13710, who did it to GPT-2.

Theirs differs in that queries and keys lose their norm before values do, that the end-of-text token
keeps a length of its own for a while, as the first token does here too, and that some of their
models had an auxiliary loss on the last lengths.
"""
