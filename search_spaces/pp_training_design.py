"""One pipeline design given as `--set key=value`, on or off the axes: purchase, schedule, and where its stages lie."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dse.model.pp_schedule import SCHEDULES
from dse.model.training_memory import RECOMPUTE, Recompute

from .pp_training_study import MAX_STAGES, PpProblem
from .training_design import TrainingDesign
from .training_problem import TrainingOffer


class PpDesign(TrainingDesign[PpProblem]):
    """Reads the keys of one pipeline design; InputError, from `finish`, with every fault."""

    def __init__(self, problem: PpProblem, given: Mapping[str, str]) -> None:
        layer_keys, mode_keys = _numbered("layers_", given), _numbered("recompute_", given)
        own = ("stages", "schedule", "chunks", "offload_layers", "collect", "pool_order")
        fleet_keys = (*own, *layer_keys, *mode_keys)
        super().__init__(problem, given, ("stages",), fleet_keys)
        keys = self.keys
        schedule = keys.choice("schedule", problem.schedules[0], SCHEDULES)
        chunks = keys.whole("chunks", problem.chunks[0] if schedule == "interleaved" else 1, 1, MAX_STAGES)
        if schedule != "interleaved" and chunks > 1:
            keys.faults.append(f"--set chunks: only an interleaved stage has pieces; the schedule is {schedule}")
            chunks = 1
        k = keys.whole("offload_layers", problem.offload_layers[0], 0, MAX_STAGES)
        q = keys.whole("collect", problem.collect[0], 1)
        if k == 0 and "collect" in given and q > 1:
            keys.faults.append("--set collect: micro-batches are collected by wafers only; set offload_layers above 0")
        if k and schedule == "interleaved":
            keys.faults.append("--set offload_layers: an interleaved pipeline hands no layers over; set it to 0")
        self.regime = replace(self.regime, schedule=schedule, chunks=chunks, offload_layers=k, collect=q if k else 1)
        self.rows = [self.pool(o, self._stages(o, k)) for o in problem.pools]
        bought = zip(problem.pools, self.rows, strict=True)
        on_chain = {o.name: row[2] for o, row in bought if row[0] and not (k and o.device.streams)}
        self.layers = self._layers(problem, layer_keys, sum(on_chain.values()))
        self.order = self._order(problem, list(on_chain))
        streams = {o.name for o in problem.pools if o.device.streams}
        whole = not k and list(on_chain.values()) == [1] and set(on_chain) <= streams
        self.stage_recompute = self._modes(mode_keys, sum(on_chain.values()), whole=whole)

    def _stages(self, offer: TrainingOffer, k: int) -> int:
        own, given = f"stages_{offer.name}", self.keys.given
        if k and offer.device.streams:
            if self.keys.whole(own, 1, 1, MAX_STAGES) != 1:
                self.keys.faults.append(f"--set {own}: a pool that takes layers of all stages holds none itself; set 1")
            return 1
        if own in given and given.get("stages", given[own]) != given[own]:
            self.keys.faults.append(f"--set stages: got {given['stages']}, but {own} = {given[own]}; give one of them")
        key = own if own in self.keys.given or "stages" not in self.keys.given or offer.device.streams else "stages"
        return self.keys.whole(key, offer.stages[0], 1, MAX_STAGES)

    def _layers(self, problem: PpProblem, given: list[str], n_stages: int) -> tuple[int, ...]:
        """Layers of each stage where they are given: all of them, or none."""
        wanted = self._every_stage("layers_", given, n_stages)
        layers = tuple(self.keys.whole(w, 1, 1, 10_000) for w in wanted)
        if layers and sum(layers) != problem.model.layers:
            self.keys.faults.append(
                f"--set layers_<stage>: they sum to {sum(layers)}, the model has {problem.model.layers}"
            )
        return layers

    def _modes(self, given: list[str], n_stages: int, *, whole: bool) -> tuple[Recompute, ...]:
        """Recompute mode of each stage where they are given: of all of them, or none."""
        if given and whole:
            self.keys.faults.append("--set recompute_<stage>: each device runs the whole model; set recompute")
            return ()
        wanted = self._every_stage("recompute_", given, n_stages)
        return tuple(self.keys.choice(w, self.regime.recompute, RECOMPUTE) for w in wanted)

    def _every_stage(self, prefix: str, given: list[str], n_stages: int) -> list[str]:
        """The keys of every stage; none where none is given, or some are missing."""
        if not given:
            return []
        wanted = [f"{prefix}{s}" for s in range(1, n_stages + 1)]
        lacking, beyond = [w for w in wanted if w not in given], [g for g in given if g not in wanted]
        if lacking or beyond:
            faults = (("missing", lacking), ("no stage", beyond))
            self.keys.faults.append(
                f"--set {prefix}<stage>: give {prefix}1 to {prefix}{n_stages}, one for each of the {n_stages} stages; "
                + "; ".join(f"{what} {', '.join(keys)}" for what, keys in faults if keys)
            )
            return []
        return wanted

    def _order(self, problem: PpProblem, on_chain: list[str]) -> tuple[int, ...]:
        """Positions of the pools in the order given; empty where it is the study's."""
        text = self.keys.given.get("pool_order")
        if not text:
            return ()
        names = [o.name for o in problem.pools]
        order = [name.strip() for name in text.split(",")]
        if len(set(order)) < len(order) or not set(on_chain) <= set(order) <= set(names):
            self.keys.faults.append(
                f"--set pool_order: got {text[:200]!r}, must name each pool that holds stages once: "
                f"{', '.join(on_chain) or 'none is bought'}"
            )
            return ()
        found = tuple(names.index(name) for name in (*order, *(n for n in names if n not in order)))
        return () if found == tuple(range(len(names))) else found


def _numbered(prefix: str, given: Mapping[str, str]) -> list[str]:
    return [key for key in given if key.startswith(prefix) and key.removeprefix(prefix).isdigit()]


def placed_settings(row: Mapping[str, Any], pools: Sequence[str]) -> dict[str, str]:
    """Keys of a frame's row that say where its stages lie, where not as in the grid."""
    found = {}
    order = str(row["pool_order"]).split(",")
    if order != [name for name in pools if name in order]:
        found["pool_order"] = ",".join(order)
    layers, _, handed = str(row["layers"]).partition(" + ")
    if str(row["layout"]) == "placed" and re.match("[0-9]", layers):
        each = int(handed.split()[0]) if handed else 0
        found |= _by_stage("layers_", [str(int(count) + each) for count in _runs(layers)])
    return found | _by_stage("recompute_", _runs(str(row["stage_recompute"])))


def _runs(text: str) -> list[str]:
    """What `3xa 1xb` stands for.

    >>> _runs("2x11 1x9")
    ['11', '11', '9']
    """
    return [what for run in text.split() for n, what in [run.split("x", 1)] for _ in range(int(n))]


def _by_stage(prefix: str, values: Sequence[str]) -> dict[str, str]:
    return {f"{prefix}{s}": value for s, value in enumerate(values, start=1)}
