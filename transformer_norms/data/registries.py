from transformer_norms.registry import Registry

CORPORA = Registry("corpus")
TOKENIZERS = Registry("tokenizer")
SPLITS = Registry("split")
