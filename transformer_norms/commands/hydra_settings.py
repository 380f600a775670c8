"""The part of Hydra that a command takes: which launcher and which sweeper, with their settings.

Hydra's other settings and flags would write outside `runs/`, train another config than the one that
was checked, or be read by nobody. They are refused.
"""

from collections.abc import Iterable

from transformer_norms.errors import ConfigError

_CHOSEN = ("hydra/launcher", "hydra/sweeper")
_SET = ("hydra.launcher.", "hydra.sweeper.")
_OURS = ("", "_target_", "settings")  # of a launcher and a sweeper, which their files set
_FLAGS = (
    *("--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn"),
    *("--experimental-rerun", "--run", "-r"),
)
_INSTEAD = (
    "type study=NAME for a folder of runs, config=RUN for a saved config, plugins=FOLDER for your "
    "own files, hydra/launcher=NAME hydra.launcher.KEY=VALUE, or so of hydra/sweeper"
)


def check_hydra_settings(arguments: Iterable[str]) -> None:
    """Raises ConfigError for a flag or a setting of Hydra's own that no command takes."""
    for text in arguments:
        word = text.partition("=")[0]
        if word in _FLAGS:
            raise ConfigError(f"{text}: Hydra's flag is not taken; {_INSTEAD}")
        key = word.lstrip("+~").partition("@")[0]
        set_here = key.startswith(_SET) and key.split(".", 2)[2] not in _OURS
        if (key == "hydra" or key.startswith(("hydra.", "hydra/"))) and not (
            set_here or key in _CHOSEN
        ):
            raise ConfigError(f"{text}: Hydra's setting is not taken; {_INSTEAD}")
