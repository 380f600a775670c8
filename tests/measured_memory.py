"""Prints the bytes that training takes in this process, by the kernel: python measured_memory.py
VOCABULARY KEY=VALUE...      Linux."""

import sys
from pathlib import Path


def resident(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def main(vocab_size, typed):
    import torch
    from test_plan_memory import trainer_of

    torch.set_num_threads(1)
    # What is imported late, threads and their buffers are no part of what a model takes.
    trainer_of(["model=tiny", "tracking=none"], 97).train_step()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts anew
    before = resident("VmRSS")
    trainer = trainer_of(typed, vocab_size)
    for _ in range(3):
        trainer.train_step()
    print(resident("VmHWM") - before)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
