"""The part of Hydra that a command takes: which launcher and which sweeper, with their settings.

Hydra's other settings and flags would write outside `runs/`, train another config than the one that
was checked, or be read by nobody. They are refused, and the line says what to type instead.
"""

from collections.abc import Iterable

from transformer_norms.errors import ConfigError

_CHOSEN = ("hydra/launcher", "hydra/sweeper")
_SET = ("hydra.launcher.", "hydra.sweeper.")
_OURS = ("_target_", "settings")  # of a launcher and a sweeper, which their files set
_FOLDER = "runs lie in runs/STUDY, each in a folder of its own; type study=NAME"
_LINES = "a run's record is the metrics.jsonl in its folder; type 2> FILE to keep the lines"
_CONFIGS = "type plugins=FOLDER for norms, configs and code of your own"
_SAVED = "type config=RUN for a saved config, sweep=NAME for a question"
_COMPOSED = "configs/train.yaml says what a command composes; type AXIS=CHOICE"
_HELP = "type --help"
# By the beginning of the key, without a leading hydra.
_INSTEAD = {
    "run": _FOLDER,
    "sweep": _FOLDER,
    "output_subdir": _FOLDER,
    "output": _FOLDER,
    "job.chdir": f"{_FOLDER}, after cd FOLDER",
    "job.env_set": "type NAME=VALUE before the command",
    "job.env_copy": "a worker has the command's variables; type NAME=VALUE before the command",
    "job": f"a run is named after its choices; {_FOLDER}",
    "job_logging": _LINES,
    "hydra_logging": _LINES,
    "verbose": _LINES,
    "callbacks": _CONFIGS,
    "searchpath": _CONFIGS,
    "mode": "-m or sweep=NAME make a sweep; type neither for one run",
    "help": _HELP,
    "hydra_help": _HELP,
    "env": _COMPOSED,
    "overrides": _COMPOSED,
    "runtime": _COMPOSED,
}
_FLAGS = {
    "--config-dir": _CONFIGS,
    "-cd": _CONFIGS,
    "--config-path": _CONFIGS,
    "-cp": _CONFIGS,
    "--config-name": _SAVED,
    "-cn": _SAVED,
    "--experimental-rerun": _SAVED,
    "--run": "a command without -m and sweep=NAME is one run; leave it out",
    "-r": "a command without -m and sweep=NAME is one run; leave it out",
}


def check_hydra_settings(arguments: Iterable[str]) -> None:
    """Raises ConfigError for a flag or a setting of Hydra's own that no command takes."""
    for text in arguments:
        word = text.partition("=")[0]
        if word in _FLAGS:
            raise ConfigError(f"{text}: Hydra's flag is not taken; {_FLAGS[word]}")
        key = word.lstrip("+~").partition("@")[0]
        if key == "hydra" or key.startswith(("hydra.", "hydra/")):
            _check_key(text, key)


def _check_key(text: str, key: str) -> None:
    group, _, name = key.removeprefix("hydra")[1:].partition(".")
    if key in _CHOSEN or (key.startswith(_SET) and name not in ("", *_OURS)):
        return
    keys = "type hydra/launcher=NAME hydra.launcher.KEY=VALUE, or so of hydra/sweeper"
    instead = _INSTEAD.get(f"{group}.{name}") or _INSTEAD.get(group) or keys
    raise ConfigError(f"{text}: Hydra's setting is not taken; {instead}")
