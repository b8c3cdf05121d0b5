"""What a script imports."""

from dse.catalog import load_catalog
from dse.explore import Result, run, write_run
from dse.resolve import Study
from dse.score import explain, score

__all__ = ["Result", "Study", "explain", "load_catalog", "run", "score", "write_run"]
