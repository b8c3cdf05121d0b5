"""heterodse: which mix of GPUs and wafer-scale engines to buy for an LLM workload, and why.

>>> from dse import Study, load_catalog, run, score
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dse.api import Study, load_catalog, run, score

__all__ = ["Study", "load_catalog", "run", "score"]


def __getattr__(name: str) -> object:
    """Loads the public names when first asked for, so that importing dse stays fast."""
    if name in __all__:
        from dse import api

        return getattr(api, name)
    raise AttributeError(f"module 'dse' has no attribute {name!r}")
