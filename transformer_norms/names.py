"""What to say of a name that is not known: what there is, and the nearest."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], how_many: int = 1) -> list[str]:
    return difflib.get_close_matches(name, list(known), how_many, cutoff=0.5)


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """`there is no norm 'rmsnrm'; there are layernorm, none, rmsnorm (did you mean 'rmsnorm'?)`"""
    known = list(known)
    near = nearest(str(name), known)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    return f"there is no {kind} {str(name)!r}; there are {', '.join(known)}{hint}"
