"""Errors a user can act on: where, what was got, what is allowed, the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class DseError(Exception):
    """Base of every error this program raises on purpose."""


class InputError(DseError, ValueError):
    """Bad input. Holds every fault found, one sentence each."""

    def __init__(self, faults: str | Sequence[str]) -> None:
        self.faults = (faults,) if isinstance(faults, str) else tuple(faults)
        super().__init__("\n".join(self.faults))


class UnknownNameError(InputError, LookupError):
    """A name that nothing carries; the message suggests the nearest ones."""


class MethodError(DseError, ValueError):
    """A method that cannot answer this study exactly; the message says why and what can."""


class ClusterError(DseError, RuntimeError):
    """Workers that die again and again on one unit of work."""


class SelfCheckError(DseError, AssertionError):
    """A plan that scores differently the second time: a bug, so nothing is reported as a result."""


def unknown_name(where: str, kind: str, name: str, known: Iterable[str]) -> str:
    """One sentence: the unknown name, the nearest known ones, else all of them."""
    names = sorted(known)
    wanted = name.lower()
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5) if wanted else []
    near = near or [n for n in names if wanted and (n.lower().startswith(wanted) or wanted in n.lower())][:3]
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(names)}"
    return f"{where}: no {kind} named {name!r}; {hint}"
