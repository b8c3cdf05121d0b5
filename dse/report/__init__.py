"""Frames in, one page out: the HTML report of a run, and the run folder read back for it."""

from dse.report.folder import write_whole_run
from dse.report.load import load_run
from dse.report.page import write_report

__all__ = ["load_run", "write_report", "write_whole_run"]
