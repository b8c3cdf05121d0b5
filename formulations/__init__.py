"""One Pyomo problem a module; the docstring is the mathematics. Building needs no solver."""
