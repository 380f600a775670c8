"""The one W&B mirror of a sweep's command, whichever process trains a run."""

from pathlib import Path
from typing import Any

from transformer_norms.sweep.planning import Job


class Mirrors:
    """Opened with the first run that wants it."""

    def __init__(self) -> None:
        self.mirror: Any = None

    def follow(self, job: Job) -> None:
        if job.mirror != "none":
            if self.mirror is None:
                from transformer_norms.tracking.mirror import Mirror

                self.mirror = Mirror(job.mirror)
            self.mirror.follow(job.folder)

    def report(self, study: Path) -> None:
        """The study's report, beside the runs that this command had mirrored."""
        if self.mirror is not None:
            self.mirror.follow(study)

    def close(self) -> None:
        if self.mirror is not None:
            self.mirror.close()
