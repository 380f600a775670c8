"""python train.py norm=rmsnorm placement=pre      is `transformer-norms train` in a clone."""

import sys

from transformer_norms.__main__ import run_process

if __name__ == "__main__":
    sys.exit(run_process(["train", *sys.argv[1:]]))
