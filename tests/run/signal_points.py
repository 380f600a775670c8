"""A plugin that sends a signal to its own process at a point of a run, and the state of a process
that says whether it can catch one."""

import time
from pathlib import Path

# $AT is `POINT CALL NUMBER`: this signal comes when POINT is called for the CALL-th time. Where
# $TWICE is set, the process then waits. Where $AGAIN is set, it comes twice in a moment.
POINTS = """
import os, time
from importlib import import_module
from transformer_norms.sweep import ending
from transformer_norms.run import beginning, run
from transformer_norms.run.metrics import MetricsFile
from transformer_norms.run.plan import Plan
from transformer_norms.run.summary import Summary
from transformer_norms.training.loss import ModelLoss
from transformer_norms.training.trainer import Trainer

prepare = import_module("transformer_norms.data.prepare")  # a function has the same name
PLACES = {
    "read": (prepare, "read_corpus"),
    "tokenize": (prepare, "encode_work"),
    "count": (Plan, "data"),
    "build": (beginning, "build_model"),
    "start": (beginning, "measure_start"),
    "step": (ModelLoss, "backward"),
    "evaluate": (ModelLoss, "sum"),
    "save": (Trainer, "tensors"),
    "row": (MetricsFile, "append"),
    "write": (os, "fsync"),
    "replace": (os, "replace"),
    "end": (Summary, "write"),
    "draw": (run, "draw_curve"),
    "report": (ending, "write_report"),
}

def plant(place, name, count, number):
    original, calls = getattr(place, name), iter(range(1, 1 << 30))

    def send_signal(*arguments, **keys):
        if next(calls) == count:
            with open("sent", "w") as file:
                file.write(str(time.monotonic()))
            os.kill(os.getpid(), number)
            if "AGAIN" in os.environ:
                os.kill(os.getpid(), number)
            while "TWICE" in os.environ:
                time.sleep(0.01)
        return original(*arguments, **keys)

    setattr(place, name, send_signal)

if "AT" in os.environ:
    point, count, number = os.environ["AT"].split()
    plant(*PLACES[point], int(count), int(number))
"""


def wait_until_caught(process, number, ceiling=600):
    """Waits for the first moment in which this process can catch a signal."""
    end = time.monotonic() + ceiling
    while True:
        assert process.poll() is None, "the process has ended"
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
        if int(caught.split()[1], 16) >> (number - 1) & 1:
            return
        assert time.monotonic() < end
        time.sleep(0.001)
