"""Computes the parameters, FLOPs and memory of a run or a sweep before it starts."""
