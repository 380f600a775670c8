PROJECT = "transformer_norms"  # of W&B, unless another one is asked for
