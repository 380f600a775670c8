"""Reads the typed BASELINE and CANDIDATE as two parties that can be trained.

    a run folder      its whole config, without its seed
    overrides         "placement=pre norm=rmsnorm optimizer.lr=2e-3" in one text; "" is the default
    a checkout        a folder with transformer_norms/: its code runs, with its defaults

Overrides as CANDIDATE are changes of a BASELINE that is a run folder or a checkout.
"""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_norms.config.finding import find_run
from transformer_norms.config.overrides import as_typed, parse
from transformer_norms.errors import ConfigError
from transformer_norms.judge.child import run_python
from transformer_norms.judge.ledger import Party
from transformer_norms.run.identity import digest
from transformer_norms.storage.files import sha256
from transformer_norms.storage.reading import real_path

OWN = Path(__file__).parents[2]  # where the package of this process lies
_NOT_TYPED = {
    "seed": "the judge trains one seed after another",
    "study": "the judge names the folder of runs by their code",
    "again": "a finished run is used again",
    "continue_from": "a run that goes on from another has the seed of that run",
}
# Two losses are compared only if these are the same.
_SHARED = (
    "trainer.steps", "trainer.batch_size", "trainer.precision", "model.context", "data.val_tokens",
)  # fmt: skip
# Prints where the package is and its commit, the identity of the run of seed 0, and the values of
# _SHARED.
_DESCRIBE = f"""
import json, sys
import transformer_norms
try:
    from transformer_norms.run import machine, plan
    config = transformer_norms.compose(sys.argv[1:])
    identity = plan.Plan(config).hash
    shared = {{}}
    for key in {_SHARED!r}:
        group, name = key.split(".")
        shared[key] = getattr(getattr(config, group), name)
    code = transformer_norms.__file__, machine.commit()["commit"]
    print(json.dumps([*code, identity, shared]))
except Exception as error:
    sys.exit(" ".join(f"{{type(error).__name__}}: {{error}}".split()))
"""


class _Typed(NamedTuple):
    """Words that were typed, and what they say: which folder's code runs, with which arguments."""

    words: str
    root: Path
    arguments: list[str]


def read_parties(baseline: str, candidate: str, common: str) -> tuple[Party, Party]:
    """Returns the two parties. `common` are overrides for both.

    Raises ConfigError if one cannot be trained, if their losses could not be compared, or if they
    are the same. Writes nothing.
    """
    default = _Typed("", OWN, [])
    first = _read(baseline, default)
    second = _read(candidate, first if Path(first.words).is_dir() else default)
    both = _overrides(common)
    one, its = _party(first.words, first.root, [*first.arguments, *both])
    two, other = _party(second.words, second.root, [*second.arguments, *both])
    for key in _SHARED:
        if its[key] != other[key]:
            raise ConfigError(
                f"{key}: {its[key]} of the baseline and {other[key]} of the candidate; their "
                f"losses are not a pair (--with {key}=VALUE sets both)"
            )
    if one.identity == two.identity:
        raise ConfigError(f"{second.words!r}: is the same run as {first.words!r}; nothing to judge")
    return one, two


def _read(words: str, base: _Typed) -> _Typed:
    """Reads a folder, a part of the name of a run's folder, or overrides that change `base`."""
    folder = Path(words)
    is_folder = words and folder.is_dir()
    if not is_folder and (not words or "=" in words):
        return _Typed(words, base.root, [*base.arguments, *_overrides(words)])
    if not is_folder:
        try:
            folder = find_run(words)
        except ConfigError as error:
            raise ConfigError(f"{error}; and it is not a KEY=VALUE") from None
    if all((folder / name).is_file() for name in ("config.yaml", "summary.json")):
        return _Typed(str(folder), OWN, [as_typed("config", str(folder / "config.yaml"))])
    if (folder / "transformer_norms" / "__init__.py").is_file():
        return _Typed(words, real_path(folder), [])
    raise ConfigError(
        f"{words}: is neither a run folder (with config.yaml and summary.json) nor a checkout "
        "(with transformer_norms/)"
    )


def _overrides(text: str) -> list[str]:
    """Returns KEY=VALUEs of one text: shell's quotes hold one together that has blanks."""
    try:
        overrides = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{text!r}: cannot be read: {str(error).lower()}") from None
    for pair in parse(overrides):
        if pair.key in _NOT_TYPED:
            raise ConfigError(f"{pair}: does not go with judge; {_NOT_TYPED[pair.key]}")
    return overrides


def _party(words: str, root: Path, arguments: list[str]) -> tuple[Party, dict[str, Any]]:
    """Returns the party, and the values of _SHARED, as the code of `root` has them."""
    code = code_hash(root, arguments)
    answer = run_python(root, _DESCRIBE, [*arguments, "seed=0", f"study={study_of(code)}"])
    if answer.code:
        kind, _, message = answer.err.partition(": ")
        known = kind in ("ConfigError", "InputError")
        raise ConfigError(message if known else f"{words}: cannot be read: {answer.err}")
    file, commit, identity, shared = json.loads(answer.out)
    if not Path(file).is_relative_to(root):
        raise ConfigError(f"{words}: Python imports {file}, and not the code of that folder")
    return Party(words, str(root), arguments, code, commit, digest([code, identity])), shared


def code_hash(root: Path, arguments: Sequence[str]) -> str:
    """Returns the hash of all code and configs that a training may use: those of the checkout in
    `root`, and of the folder that plugins= names. It has no path of a checkout: a copy of the same
    code finds the same runs."""
    plugins = [pair.word for pair in parse(arguments) if pair.key == "plugins"]
    named = [Path(word) for word in plugins if word != "none"]
    folders = [root / "transformer_norms", root / "configs", *named]
    return digest([_content(folder) for folder in folders])


def _content(folder: Path) -> dict[str, str]:
    """Returns the hash of each file in a folder, by its path, without what Python compiled."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return {
        file.relative_to(folder).as_posix(): sha256(file.resolve())
        for file in files
        if "__pycache__" not in file.parts and file.suffix not in (".pyc", ".so")
    }


def study_of(code: str) -> str:
    """Returns the study of the runs of one code: other code never finds them."""
    return f"judge-{code[:8]}"
