"""`pointsman …`: finds the command, runs it, and turns refusals into sentences and exit codes.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from router.cli.mock import become
from router.cli.parser import module_of, parse
from router.settings import SettingsError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line.

    Args:
        argv: the words after the program's name; None takes those of this process.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["mock"]:
        become(words[1:])
    command, args = parse(words)
    try:
        code: int = module_of(command).run(args)
    except SettingsError as error:
        for problem in error.problems:
            sys.stderr.write(f"pointsman: {problem}\n")
        return 1
    except MemoryError:
        sys.stderr.write(f"pointsman {command}: there is not enough memory for what was asked\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return code


if __name__ == "__main__":
    sys.exit(main())
