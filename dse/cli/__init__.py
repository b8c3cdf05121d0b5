"""The command `dse`: one module a command, each thin."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

OK, BUG, BAD_INPUT, INFEASIBLE, STOPPED, JOBS_FAILED = 0, 1, 2, 3, 4, 5


def main() -> NoReturn:
    """Runs the command line; every expected failure is a sentence on stderr and an exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    debug = "--debug" in sys.argv
    try:
        sys.exit(_run([a for a in sys.argv[1:] if a != "--debug"]))
    except Exception as error:
        if debug:
            raise
        sys.exit(_explained(error))
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        print("stopped; nothing more was written", file=sys.stderr)
        sys.exit(STOPPED)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


INTERRUPTED = 130
"""What the command-line library makes of a Ctrl-C."""


def _run(arguments: list[str]) -> int:
    from typer import Abort
    from typer.exceptions import TyperException

    from dse.cli.app import app

    try:
        code = app(arguments, standalone_mode=False)
    except Abort:
        return STOPPED
    except TyperException as error:
        if not hasattr(error, "show"):
            raise
        error.show()
        return BAD_INPUT
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code if isinstance(code, int) else OK


def _explained(error: Exception) -> int:
    """What went wrong, in a sentence on stderr; the exit code."""
    from dse.errors import ClusterError, DseError, SelfCheckError

    if isinstance(error, BrokenPipeError):
        sys.stderr.close()
        return OK
    if isinstance(error, SelfCheckError):
        text, code = f"self-check failed: {error}\nThis is a bug in heterodse; no result was reported.", BUG
    elif isinstance(error, ClusterError):
        text, code = f"stopped: {error}", STOPPED
    elif isinstance(error, DseError):
        text, code = f"error: {error}".replace("\n", "\nerror: "), BAD_INPUT
    elif isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        text, code = f"error: {where}{error.strerror or error}; nothing more was written", BAD_INPUT
    else:
        text = f"internal error: {type(error).__name__}: {error}\nThis is a bug; --debug shows where."
        code = BUG
    print(text, file=sys.stderr)
    return code
