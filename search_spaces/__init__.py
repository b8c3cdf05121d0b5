"""Search spaces: per paradigm, the study's own part and the axes, once; grid, suggestion and legality from them."""
