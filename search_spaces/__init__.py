"""Search spaces: per paradigm the study's own part and the axes; grid, suggestion, legality from them."""
