"""The command `dse` inside the process of the tests: starting one each time would take most of their time."""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

from dse.cli import main


def dse(*arguments: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the command as the shell would, from a folder; its exit code and what it printed."""
    given = [str(a) for a in arguments]
    out, err, code = io.StringIO(), io.StringIO(), 0
    handler = signal.getsignal(signal.SIGTERM)
    with (
        mock.patch.object(sys, "argv", ["dse", *given]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(folder or Path.cwd()),
    ):
        try:
            main()
        except SystemExit as done:
            code = done.code if isinstance(done.code, int) else int(done.code is not None)
        finally:
            signal.signal(signal.SIGTERM, handler)
    return subprocess.CompletedProcess(given, code, out.getvalue(), err.getvalue())
