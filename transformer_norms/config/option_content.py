"""Reads the files of configs/, and those of a folder of plugins."""

from pathlib import Path
from typing import Any

from transformer_norms.names import option_files
from transformer_norms.storage.reading import read_yaml, real_path


def option_content(axis: str, name: str, folder: Path | None = None) -> dict[str, Any]:
    """Returns what configs/AXIS/NAME.yaml holds. `folder` is a folder of plugins."""
    return read_config_file(option_files(axis, folder)[name])


def read_config_file(file: Path) -> dict[str, Any]:
    """Returns the keys of a file of configs/. Raises ConfigError where it is not YAML."""
    content = read_yaml(real_path(file), values_only=False)
    return {str(key): value for key, value in (content or {}).items()}
