"""The parts of norms: their gains, a division by a length, a matrix, gradients written out."""
