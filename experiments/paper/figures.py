"""The figures that `dse paper` reproduces: for each its data, its verdicts, its picture; and the one loop over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pandas as pd

from dse.files import write_whole

from . import eq5, fig5, fig7, fig8, fig10, fig11, fig12, fig16, fig17, table3
from .picture import save, styled
from .statement import Statement


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure or table of the paper."""

    title: str
    frame: Callable[[], pd.DataFrame]
    """Its data, tidy: one row for each point."""
    judge: Callable[[pd.DataFrame], list[Statement]]
    """What the paper says of it, against these data."""
    draw: Callable[[pd.DataFrame], Any]
    """The picture, as an Altair chart."""


TITLES: Final[Mapping[ModuleType, str]] = {
    fig5: "Fig. 5: data-parallel training over global batches; T1 and T2 are the thresholds",
    fig7: "Fig. 7: least bandwidth at which training on both gains",
    fig8: "Fig. 8: k layers of every GPU stage on the wafer, micro-batch 1; a tick is the replay event by event",
    fig10: "Fig. 10: time of a layer, forward and backward, and the threshold below which k = 1 pays",
    fig11: "Fig. 11: pairs of micro-batches; a number is the fewest layers of a stage that must go to the wafer",
    fig12: "Fig. 12: decoupled pipelines (tick: replay event by event), and the bandwidth that keeps their gain",
    fig16: "Fig. 16: GPUs that keep one wafer busy, GPUs prefill and wafers decode",
    fig17: "Fig. 17: throughput of both together over the sum of both alone, at the ratio that suits 1K/1K",
    table3: "Table 3: KV cache that leaves prefilling GPUs",
    eq5: "Eq. (5): fitted against derived, alpha in proportion to the shortfall of load; dashed: the paper's p90",
}
FIGURES: Final[Mapping[str, Figure]] = {
    module.NAME: Figure(title=title, frame=module.frame, judge=module.judge, draw=module.draw)
    for module, title in TITLES.items()
}


def reproduce(name: str, folder: Path) -> list[Statement]:
    """Writes NAME.csv, NAME.svg and NAME.png into a folder that is there; returns the verdicts."""
    figure = FIGURES[name]
    data = figure.frame()
    write_whole(folder / f"{name}.csv", data.to_csv(index=False))
    save(styled(figure.draw(data), figure.title), folder, name)
    return figure.judge(data)
