"""python train.py norm=rmsnorm placement=pre      is `transformer-norms train` in a clone."""

import sys

from transformer_norms.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
