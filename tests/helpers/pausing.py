"""A plugin that stops training at a step, so that a signal always comes in the middle of a run."""

# Training stands still at the step PAUSE until a signal comes, or the file `go`.
PAUSE = """
import os, time
from pathlib import Path
from transformer_norms.run.metrics import MetricsFile
from transformer_norms.signals import current_work

append = MetricsFile.append

def append_and_pause(self, row):
    append(self, row)
    while str(row["step"]) == os.environ["PAUSE"] and not Path("go").exists():
        if current_work().stop_requested:
            break
        time.sleep(0.01)

if "PAUSE" in os.environ:
    MetricsFile.append = append_and_pause
"""
