"""python train.py norm=rmsnorm placement=pre      trains one run; -m norm=a,b trains many."""

import sys

if __name__ == "__main__":
    try:
        from transformer_norms.cli import main

        code = main(sys.argv[1:])
    except KeyboardInterrupt:  # before a run had begun that could save anything
        print("stopped before the first step; the same command starts it again", file=sys.stderr)
        code = 75
    sys.exit(code)
