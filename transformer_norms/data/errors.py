class InputError(ValueError):
    """A corpus, tokenizer or split that cannot be used: one line, what was given and what to do."""
