"""Holds back what compiled code writes to standard output past Python: results alone belong there.

HiGHS, as SciPy ships it, writes a line of its own debugging there now and then, whatever `disp` says.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def no_output() -> Iterator[None]:
    """Nothing reaches the process's standard output inside; left as it is where there is none."""
    try:
        sys.stdout.flush()
        kept = os.dup(1)
    except (OSError, ValueError):
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
