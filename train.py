"""python train.py norm=rmsnorm placement=pre      trains one run; -m norm=a,b trains many."""

import sys

from transformer_norms.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
