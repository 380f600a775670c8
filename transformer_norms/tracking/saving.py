"""The command that saves a workspace: one line and no prompt where that cannot be done."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec

from transformer_norms.tracking.mirror import resolve_mode

_SECONDS = 30
_PROJECT = re.compile(r"([\w.-]+/)?[^/\\#?%:\s]{1,128}")


def save(project: str) -> int:
    """Saves the views of `[ENTITY/]PROJECT` and prints their URLs; the command's exit code."""
    if not _PROJECT.fullmatch(project):
        print(f"{project}: a W&B project is named [ENTITY/]PROJECT", file=sys.stderr)
        return 2
    if find_spec("wandb_workspaces") is None:
        return _refused("install it first: pip install 'wandb-workspaces>=0.4,<0.5'")
    if resolve_mode("auto", os.environ) != "online":
        return _refused("log in first (wandb login), and leave WANDB_MODE unset")
    try:  # a process of its own: W&B tries for minutes where there is no network
        done = subprocess.run(
            [sys.executable, "-m", "transformer_norms.tracking.workspace", project],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _refused(f"W&B did not answer within {_SECONDS} s; is there a network?")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        return _refused(last.replace(os.environ.get("WANDB_API_KEY") or "\0", "***"))
    print(done.stdout.strip())
    return 0


def _refused(why: str) -> int:
    print(f"no workspace was saved: {why}", file=sys.stderr)
    return 1
