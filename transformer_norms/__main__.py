"""transformer-norms COMMAND ...      or python -m transformer_norms COMMAND ..."""

import os
import sys
from collections.abc import Sequence

from transformer_norms import processes, signals

# A signal ends these with the code 75, which says: the same command goes on. Others have nothing to
# go on with, and end by the signal as any program does.
STOPPED_WITH_75 = ("train", "data", "judge")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that the arguments name and returns its exit code. Without arguments, it
    runs the command of this process."""
    if arguments is None:
        return run_process(sys.argv[1:])
    try:
        if "_ARGCOMPLETE" in os.environ:  # a shell asks what the typed line may go on with
            from transformer_norms.commands.completion import answer_shell

            answer_shell()
        from transformer_norms.commands.dispatch import run

        return run(list(arguments))
    except KeyboardInterrupt:  # while Python was importing
        print("stopped", file=sys.stderr)
        return 130


def run_process(arguments: Sequence[str]) -> int:
    """Runs the command for which this process was started. Signals are answered from here on, to
    its end."""
    processes.hold_stream_numbers()  # before any file is opened
    processes.shorten_spinning()
    os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")  # what mps lacks, the CPU computes
    if arguments and arguments[0] in STOPPED_WITH_75:
        signals.watch_command()
    try:
        return main(arguments)
    finally:
        signals.leave_if_asked()


if __name__ == "__main__":
    sys.exit(main())
