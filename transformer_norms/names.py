"""The names that a config says: the classes and YAML files that they name, and what to say of an
unknown name."""

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from inspect import Parameter
from pathlib import Path
from typing import Any

import yaml

AXES_OF_A_RUN = (
    "norm placement init position attention mlp preset recipe model data tokenizer loss optimizer "
    "schedule tracking"
).split()
PLUGIN = "transformer_norms_plugin_"  # begins the name of each module of a user's own folder
AXES = [*AXES_OF_A_RUN, "launcher", "parallel", "sweep"]


class Registry(dict[str, Any]):
    """One kind of choice: norms, optimizers, corpora. A decorator: `@NORMS("rmsnorm")`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def __call__(self, name: str, **facts: Any) -> Callable[[Any], Any]:
        """Registers a thing under `name`. `facts` become its attributes, which can be read before
        it is called."""

        def register(thing: Any) -> Any:
            if name in self and self[name] is not thing:
                raise ValueError(f"{self.kind} '{name}' is taken by {self[name].__module__}")
            for fact, value in facts.items():
                setattr(thing, fact, value)
            self[name] = thing
            return thing

        return register

    def maker(self, node: Mapping[str, Any]) -> partial[Any]:
        """Returns the thing that the node's `type` names, with the node's values that it takes as
        arguments. The other values of a node only describe the choice."""
        thing = self[node["type"]]
        own = node.keys() & parameters(thing).keys() - {"type"}
        return partial(thing, **{key: value for key, value in node.items() if key in own})


@cache
def parameters(owner: Callable[..., Any]) -> Mapping[str, Parameter]:
    """Returns the arguments of a class or function, by name, without `**rest`. A deep model asks
    for those of a norm once a site."""
    arguments = inspect.signature(owner, eval_str=True).parameters
    return {name: one for name, one in arguments.items() if one.kind is not Parameter.VAR_KEYWORD}


def folder_of_configs() -> Path:
    """configs/ next to the package in a clone, inside it in a wheel."""
    inside = Path(__file__).parent / "configs"
    return inside if inside.is_dir() else Path(__file__).parents[1] / "configs"


def options(axis: str, folder: Path | None = None) -> list[str]:
    """The names that AXIS=NAME may take."""
    return sorted(option_files(axis, folder))


def option_files(axis: str, folder: Path | None = None) -> dict[str, Path]:
    """The file of each name of an axis. `folder` is a folder of plugins, which has its own."""
    roots = [folder_of_configs(), *([folder / "configs"] if folder else [])]
    return {file.stem: file for root in roots for file in sorted((root / axis).glob("*.yaml"))}


def option_name(axis: str, typed: Any) -> Any:
    """Returns the name of an option that was typed as a name or as its file: quick.yaml or
    configs/sweep/quick.yaml is quick."""
    if axis in AXES and isinstance(typed, str):
        return re.sub(rf"^(?:(?:\./)?configs/{axis}/)?([\w.-]+)\.ya?ml$", r"\1", typed)
    return typed


def distinct_norms(folder: Path | None = None) -> list[str]:
    """The options of norm= that compute different functions. If options differ only in eps and
    source, the shortest name is taken for all. `folder` is a folder of plugins."""
    names: dict[str, str] = {}
    for name, file in sorted(option_files("norm", folder).items(), key=lambda item: len(item[0])):
        norm = yaml.safe_load(file.read_text(encoding="utf-8"))
        function = {key: value for key, value in norm.items() if key not in ("eps", "source")}
        names.setdefault(str(function), name)
    return sorted(names.values())


def nearest(name: str, known: Iterable[str], cutoff: float = 0.5) -> list[str]:
    """Returns the name that looks most like `name`, or none: `window` and `sliding_window` are
    alike, since the one is a whole word of the other."""
    name, known = name.lower()[:200], list(known)
    close = difflib.get_close_matches(name, known, 1, _WHOLE_WORD)
    holding = [one for one in known if name in one.split("_")]
    if len(holding) > _FEW:  # a word of many names tells none of them apart
        holding = []
    loose = difflib.get_close_matches(name, known, 1, cutoff)
    return [*close, *sorted(holding, key=len), *loose][:1]


_WHOLE_WORD = 0.8  # the likeness above which letters say more than a common word
_FEW = 3


# Each key that names a norm takes these words, too.
NORM_WORDS = {
    "embed": ("auto", "fixnorm", "none"),
    "final_norm": ("auto", "always", "none"),
    "qk_norm": ("auto", "none", "head", "per_head", "full", "l2"),
    "v_norm": ("auto", "none", "head", "per_head", "full", "l2"),
}


def unknown(kind: str, name: object, known: Iterable[str], axis: str = "") -> str:
    """`did you mean 'rmsnorm'? there is no norm 'rmsnrm'; there are layernorm, none, rmsnorm`
    The names are options of `axis`, or of the axis `kind`, or others."""
    known, axis = list(known), axis or kind
    where = f"configs/{axis} has all" if axis in AXES else ""
    if axis in AXES_OF_A_RUN:
        where = "transformer-norms explain --list shows all"
    there = f"there are {name_list(known, where)}" if known else "there are none"
    return f"{suggestion(name, known, kind)}there is no {kind} {str(name)!r}; {there}"


def name_list(names: Sequence[str], where: str) -> str:
    """Returns the names, or the first of many and `where` all of them are."""
    if not where or len(names) <= 2 * _SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[:_SHOWN])}, and {len(names) - _SHOWN} more ({where})"


_SHOWN = 8


def suggestion(name: object, known: Iterable[str], kind: str = "") -> str:
    """Returns `did you mean 'rmsnorm'? `, or nothing where no name is near. A word of another
    codebase for a value of the key or axis `kind` comes before names that look alike."""
    return did_you_mean(theirs(name, kind) or nearest(str(name), known))


def did_you_mean(near: Iterable[str]) -> str:
    """Returns `did you mean 'adamw' or 'muon'? `, or nothing."""
    names = " or ".join(repr(one) for one in near)
    return f"did you mean {names}? " if names else ""


def theirs(name: object, kind: str = "") -> list[str]:
    """Returns our words for a word of another codebase: for a value of the key or axis `kind`, or
    for a key."""
    ours = _synonyms().get(spelling(name), [])
    values = [one.removeprefix(f"{kind}=") for one in ours if one.startswith(f"{kind}=")]
    return values if kind else [one for one in ours if "=" not in one]


def spelling(name: object) -> str:
    """Returns a word without what does not count in it: pre-norm, PreNorm and pre_norm are one."""
    return re.sub(r"[-_ ]", "", str(name)[:200]).lower()


@cache
def _synonyms() -> dict[str, list[str]]:
    """Returns configs/other_codebases.yaml, by the words of others."""
    text = (folder_of_configs() / "other_codebases.yaml").read_text(encoding="utf-8")
    words: dict[str, list[str]] = {}
    for our, their_words in yaml.safe_load(text).items():
        for word in dict.fromkeys(map(spelling, their_words)):  # two spellings of a word are one
            words.setdefault(word, []).append(our)
    return words
