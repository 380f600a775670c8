"""Prints the bytes that training takes in this process, by the kernel: python measured_memory.py
VOCABULARY KEY=VALUE...      Linux."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))


def main(vocab_size, typed):
    import torch
    from fresh import highest, reset
    from test_plan_memory import trainer_of

    torch.set_num_threads(1)
    # A first step loads late imports, threads and their buffers, which are no part of a model.
    trainer_of(["model=nano", "tracking=none"], 97).train_step()
    before = reset()
    trainer = trainer_of(typed, vocab_size)
    for _ in range(3):
        trainer.train_step()
    print(highest() - before)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
