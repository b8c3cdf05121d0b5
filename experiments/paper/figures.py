"""The figures that `dse paper` reproduces: for each its data, its verdicts, its picture; and the one loop over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd

from dse.files import write_whole

from . import fig5, fig7, fig16, fig17, table3
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


FIGURES: Final[Mapping[str, Figure]] = {
    "fig5": Figure(
        title="Fig. 5: data-parallel training over global batches; T1 and T2 are the thresholds",
        frame=fig5.frame,
        judge=fig5.judge,
        draw=fig5.draw,
    ),
    "fig7": Figure(
        title="Fig. 7: least bandwidth at which training on both gains",
        frame=fig7.frame,
        judge=fig7.judge,
        draw=fig7.draw,
    ),
    "fig16": Figure(
        title="Fig. 16: GPUs that keep one wafer busy, GPUs prefill and wafers decode",
        frame=fig16.frame,
        judge=fig16.judge,
        draw=fig16.draw,
    ),
    "fig17": Figure(
        title="Fig. 17: throughput of both together over the sum of both alone, at the ratio that suits 1K/1K",
        frame=fig17.frame,
        judge=fig17.judge,
        draw=fig17.draw,
    ),
    "table3": Figure(
        title="Table 3: KV cache that leaves prefilling GPUs",
        frame=table3.frame,
        judge=table3.judge,
        draw=table3.draw,
    ),
}


def reproduce(name: str, folder: Path) -> list[Statement]:
    """Writes NAME.csv, NAME.svg and NAME.png into a folder that is there; returns the verdicts."""
    figure = FIGURES[name]
    data = figure.frame()
    write_whole(folder / f"{name}.csv", data.to_csv(index=False))
    save(styled(figure.draw(data), figure.title), folder, name)
    return figure.judge(data)
