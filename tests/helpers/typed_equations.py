"""Equations that no paper has, as keys of a placement, and how they are typed."""

from pathlib import Path

import yaml

from transformer_norms.config.overrides import as_typed

EQUATIONS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def typed(keys):
    return [as_typed(f"placement.{key}", value) for key, value in keys.items()]
