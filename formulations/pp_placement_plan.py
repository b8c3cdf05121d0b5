"""From a solved placement program to the design's `--set` keys."""

from __future__ import annotations

import pyomo.environ as pyo

from dse.model.pp_blocks import PlacedPipeline, flying, most_layers

from .pp_placement_data import PlacementData, Placements


def found_placement(m: pyo.ConcreteModel, data: PlacementData, space: Placements) -> dict[str, str]:
    """The settings of the plan in the variables; each pool at the least sharding that fits, which asks least of it."""
    stages = sorted((i for i in m.CHOICES if pyo.value(m.pick[i]) > 0.5), reverse=True)
    layers = [round(pyo.value(m.layers[i])) for i in stages]
    held = flying(data.frame, len(stages))
    chain = []
    for arc in sorted((a for a in m.ARCS if pyo.value(m.lie[a]) > 0.5), key=lambda a: -a[1]):
        block = data.blocks[arc[0]]
        mine = [(i, n) for i, n in zip(stages, layers, strict=True) if i[1] == arc[0]]
        fits = (
            zero
            for zero in block.zero_stages
            if all(n <= most_layers(data.frame, block, zero, held, first=i[3])[i[2], i[0]] for i, n in mine)
        )
        chain.append((block, next(fits, block.zero_stages[-1])))
    link = max(data.frame.links, key=lambda i: pyo.value(m.use[i]))
    placed = PlacedPipeline(
        frame=data.frame,
        chain=chain,
        layers=[n + data.handed for n in layers],
        modes=[data.frame.modes[i[2]] for i in stages],
        link=link,
    )
    return space.settings_of_placement(data.regime, placed)
