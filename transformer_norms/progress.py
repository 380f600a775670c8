"""Shows training as it goes: a live line on a terminal, a plain line now and then elsewhere."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from transformer_norms.record import say
from transformer_norms.trainer import Trainer

PLAIN_EVERY = 15.0  # seconds between lines where nobody watches a terminal


class Watch:
    """Called after each step; `with` it, so that the terminal is left as it was."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.begun: float | None = None
        self.first = 0
        self.shown = 0.0
        self.live: Progress | None = None
        if sys.stderr.isatty():
            self.live = Progress(
                TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
                BarColumn(bar_width=None),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
                console=Console(file=sys.stderr),
                speed_estimate_period=60,
            )
            self.task = self.live.add_task("", total=steps, start=False)

    def __enter__(self) -> "Watch":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def __call__(self, trainer: Trainer, val_loss: float | None) -> None:
        now = time.monotonic()
        if self.begun is None:
            self.begun, self.shown, self.first = now, now, trainer.step
            if self.live:
                self.live.start_task(self.task)
        if self.live is None and now - self.shown < PLAIN_EVERY:
            return
        if self.live is not None and now - self.shown < 0.1 and trainer.step < self.steps:
            return
        self.shown = now
        rate = trainer.tokens / trainer.seconds if trainer.seconds else 0.0
        loss = f"loss {trainer.last_loss:.3f}"
        loss += "" if val_loss is None else f"  val {val_loss:.3f}"
        text = f"{loss}  {rate:,.0f} tokens/s"
        if self.live is not None:
            self.live.update(self.task, completed=trainer.step, description=text)
            return
        done = max(1, trainer.step - self.first)
        left = (now - self.begun) / done * (self.steps - trainer.step)
        say(f"step {trainer.step}/{self.steps}  {text}  {clock(left)} left")


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
