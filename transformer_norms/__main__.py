"""transformer-norms COMMAND ...      or python -m transformer_norms COMMAND ..."""

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command that the arguments name and returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if "_ARGCOMPLETE" in os.environ:  # a shell asks what the typed line may go on with
            from transformer_norms.commands.completion import answer_shell

            answer_shell()
        from transformer_norms.commands.dispatch import run

        return run(arguments)
    except KeyboardInterrupt:  # while Python was importing
        print("stopped before it had begun; the same command starts it again", file=sys.stderr)
        return 75


if __name__ == "__main__":
    sys.exit(main())
