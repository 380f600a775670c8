"""Runs code in a fresh process: what checks shapes in that of the tests cannot be compiled."""

import os
import subprocess
import sys


def run_python(code, *arguments, **keys):
    """Returns what the code prints. It imports what a test can import."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, **keys)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
