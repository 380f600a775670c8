"""Names for classes and functions: a config says `type: rmsnorm`, never a dotted path."""

from collections.abc import Callable
from typing import Any


class Registry(dict[str, Any]):
    """One kind of choice: norms, optimizers, corpora. A decorator: `@NORMS("rmsnorm")`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def __call__(self, name: str, **facts: Any) -> Callable[[Any], Any]:
        """Registers a thing under `name`. `facts` become its attributes: what others must know of
        it before they call it."""

        def register(thing: Any) -> Any:
            if name in self and self[name] is not thing:
                raise ValueError(f"{self.kind} '{name}' is taken by {self[name].__module__}")
            for fact, value in facts.items():
                setattr(thing, fact, value)
            self[name] = thing
            return thing

        return register
