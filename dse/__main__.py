"""`python -m dse` is `dse`."""

from dse.cli import main

main()
