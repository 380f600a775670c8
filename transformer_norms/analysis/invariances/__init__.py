"""python -m transformer_norms.analysis.invariances      what each norm is invariant to, measured

Ba et al. 2016, arXiv:1607.06450, Table 1; Zhang & Sennrich 2019, arXiv:1910.07467.
"""
