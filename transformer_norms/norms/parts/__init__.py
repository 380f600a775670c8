"""What norms are made of: their gains, a division by a length, a matrix, gradients written out."""
