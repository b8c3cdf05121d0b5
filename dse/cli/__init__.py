"""The command `dse`: one module a command, each thin."""

from __future__ import annotations

import sys
from typing import NoReturn

OK, BUG, BAD_INPUT, INFEASIBLE, STOPPED = 0, 1, 2, 3, 4


def main() -> NoReturn:
    """Runs the command line; every expected failure is a sentence on stderr and an exit code."""
    from dse.cli.app import app
    from dse.errors import DseError, SelfCheckError

    debug = "--debug" in sys.argv
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    try:
        app(arguments, standalone_mode=True)
        sys.exit(OK)
    except SelfCheckError as error:
        if debug:
            raise
        print(
            f"self-check failed: {error}\nThis is a bug in heterodse; no result was reported.",
            file=sys.stderr,
        )
        sys.exit(BUG)
    except DseError as error:
        if debug:
            raise
        print(f"error: {error}".replace("\n", "\nerror: "), file=sys.stderr)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(STOPPED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(OK)
    except Exception as error:
        if debug:
            raise
        print(
            f"internal error: {type(error).__name__}: {error}\nThis is a bug; run again with --debug for the details.",
            file=sys.stderr,
        )
        sys.exit(BUG)
