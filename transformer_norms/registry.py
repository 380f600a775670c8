"""Names for classes and functions: a config says `type: rmsnorm`, never a dotted path."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
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

    def maker(self, node: Mapping[str, Any]) -> partial[Any]:
        """Returns what the node's `type` names, given the node's values that it has arguments for.
        The rest of a node is what its file says besides."""
        thing = self[node["type"]]
        own = node.keys() & inspect.signature(thing).parameters.keys() - {"type"}
        return partial(thing, **{key: value for key, value in node.items() if key in own})
