"""Studies as data; `dse run` runs any of them."""
