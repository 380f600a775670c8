"""The wishes of a command to W&B: its mode, by the login that there is, and its names."""

import netrc
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from transformer_norms.errors import ConfigError
from transformer_norms.names import suggestion

_VARIABLES = {key: f"WANDB_{key.upper()}" for key in ("project", "entity", "name", "tags", "notes")}
_VARIABLES["group"] = "WANDB_RUN_GROUP"
_MODES, _LOGINS = ("online", "offline", "disabled"), ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")
# W&B has had two names for its host, and a login may be under either.
_HOSTS = {"api.forge.coreweave.com", "api.wandb.ai"}


def resolve_mode(mode: str, environment: Mapping[str, str]) -> str:
    """Returns `online`, `offline` or `disabled`: what was typed, else what $WANDB_DISABLED and
    $WANDB_MODE say, else `online` where there are credentials. Raises ConfigError for a mode that
    W&B does not have, and for `online` without credentials."""
    has_login = any(map(environment.get, _LOGINS)) or _login_is_stored(environment)
    key = "WANDB_MODE" if mode == "auto" else "tracking.mode"
    if mode == "auto":
        off = environment.get("WANDB_DISABLED", "").lower() in ("1", "true", "yes", "on")
        mode = "disabled" if off else environment.get("WANDB_MODE", "")
    words = {"": "online" if has_login else "offline", "run": "online", "shared": "online"}
    word = words.get(mode, "offline" if mode == "dryrun" else mode)
    if word not in _MODES:
        raise ConfigError(f"{key}={mode}: {suggestion(mode, _MODES)}W&B takes {', '.join(_MODES)}")
    if word == "online" and not (has_login or _login_is_stored(environment, anywhere=True)):
        raise ConfigError(f"{key}={mode}: there is no login to W&B; type wandb login first")
    return word


def wishes(tracking: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Returns what is asked of W&B by a typed key of tracking=wandb, else by W&B's variable."""
    asked = {key: environment[name] for key, name in _VARIABLES.items() if environment.get(name)}
    for key in _VARIABLES:
        if (value := tracking.get(key, "none")) not in ("none", (), []):
            asked[key] = value if isinstance(value, str) else ",".join(value)
    return asked


def _login_is_stored(environment: Mapping[str, str], anywhere: bool = False) -> bool:
    # A process of an unknown user has no home, of which Path.expanduser would complain.
    home = environment.get("HOME", "~")
    file = environment.get("NETRC") or os.path.expanduser(f"{home}/.netrc")
    url = environment.get("WANDB_BASE_URL")
    with suppress(OSError, netrc.NetrcParseError):
        logins = netrc.netrc(file).hosts
        hosts = {urlsplit(url).netloc} if url else _HOSTS
        return bool(logins) if anywhere else not logins.keys().isdisjoint(hosts)
    return False
