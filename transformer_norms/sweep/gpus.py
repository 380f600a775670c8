"""The GPUs that workers share: their names, and NVIDIA's MPS, under which the processes of one GPU
compute at the same time instead of in turn."""

import os
import shutil
import subprocess
from pathlib import Path

_CONTROL = "nvidia-cuda-mps-control"
_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
# The signals that ask a job to save its runs reach all of its processes. The daemon has to outlive
# the runs, so it is started without these signals.
_START = f"trap '' TERM USR1 HUP; exec {_CONTROL} -d"


def visible_gpus(gpus: int, renumbered: bool = False) -> list[str]:
    """Returns the names of the `gpus` GPUs that CUDA sees here, for CUDA_VISIBLE_DEVICES. CUDA ends
    that list at the first GPU that does not exist. Behind a daemon that was started with such a
    list, its GPUs are `renumbered` from 0; their long names (GPU-..., MIG-...) stay."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [name.strip() for name in visible.split(",")] if visible else []
    if not names or (renumbered and names[0].isdecimal()):
        names = [str(number) for number in range(gpus)]
    return names[:gpus]


class Mps:
    """A daemon of MPS for this command alone, with pipes and logs in `folder`, until `close`. There
    is none where MPS is not installed, or where a daemon of the machine serves already."""

    def __init__(self, folder: Path) -> None:
        self.runs = bool(shutil.which(_CONTROL)) and _PIPES not in os.environ
        if not self.runs:
            return
        for name, place in ((_PIPES, folder / "mps-pipes"), (_LOGS, folder / "mps-logs")):
            place.mkdir()
            os.environ[name] = str(place)  # for the daemon, and for the workers
        done = subprocess.run(["sh", "-c", _START], capture_output=True, text=True)
        if done.returncode:  # without it the workers take turns, which is slower and nothing else
            self._forget()

    def close(self) -> None:
        if self.runs:
            subprocess.run([_CONTROL], input="quit\n", capture_output=True, text=True)
            self._forget()

    def _forget(self) -> None:
        self.runs = False
        for name in (_PIPES, _LOGS):
            del os.environ[name]
