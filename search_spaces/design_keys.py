"""One design given as `--set key=value`: how any paradigm reads its keys, on or off the study's axes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from dse.errors import unknown_name
from dse.model.links import LinkTable

from .fleet_study import MAX_DEVICES

Text = TypeVar("Text", bound=str)


class DesignKeys:
    """Keys and values as given; every fault is noted in `faults`, so that all are told together."""

    def __init__(self, given: Mapping[str, str], known: Iterable[str]) -> None:
        self.given = dict(given)
        keys = list(known)
        self.faults = [unknown_name("--set", "design key", k, keys) for k in given if k not in keys]

    def choice(self, key: str, default: Text, allowed: Sequence[Text] | Mapping[Text, object]) -> Text:
        """One of some words."""
        value = self.given.get(key, default)
        found = next((word for word in allowed if word == value), None)
        if found is None:
            self.faults.append(f"--set {key}: got {value!r}, must be one of {', '.join(allowed)}")
            return default
        return found

    def whole(self, key: str, default: int, at_least: int, at_most: int = MAX_DEVICES) -> int:
        """A whole number."""
        text = self.given.get(key)
        if text is None:
            return default
        value = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else -1
        if not at_least <= value <= at_most:
            allowed = f"must be a whole number, at least {at_least} and at most {at_most:,}"
            self.faults.append(f"--set {key}: got {text!r}, {allowed}")
            return default
        return value

    def link(self, links: LinkTable, names: tuple[str, ...]) -> tuple[LinkTable, tuple[str, ...], int]:
        """The links on offer and the one asked for, by name or bandwidth; any other bandwidth is a raw link."""
        if "link" in self.given:
            return links, names, names.index(self.choice("link", names[0], names))
        text = self.given.get("link_gb_s")
        if text is None:
            return links, names, 0
        gb_s = float(text) if re.fullmatch(r"[0-9.]{1,20}(e[+-]?[0-9]{1,3})?", text) and text.count(".") < 2 else -1.0
        if not 1e-6 <= gb_s <= 1e9:
            self.faults.append(f"--set link_gb_s: got {text[:40]!r}, must be a number of GB/s, 1e-6 to 1e9")
            return links, names, 0
        on_offer = np.flatnonzero(np.isclose(links.byte_s, gb_s * 1e9, rtol=1e-12, atol=0.0))
        if len(on_offer):
            return links, names, int(on_offer[0])
        raw = LinkTable(
            byte_s=np.array([gb_s * 1e9]),
            latency_s=np.array([float(links.latency_s[0])]),
            usd_per_h=np.zeros(1),
            power_w=np.zeros(1),
        )
        return raw, (f"{gb_s:.12g} GB/s",), 0

    def computes_in(self, pool: str, n: int, peak: float | None, dtype: str, has: Iterable[str]) -> None:
        """Notes a pool that is bought but lacks the arithmetic."""
        if n and not peak:
            self.faults.append(f"--set compute_dtype={dtype}: {pool} computes in {', '.join(has)}")

    def something_bought(self, counts: Iterable[int]) -> None:
        """Notes a design without any device."""
        if not any(counts) and not self.faults:
            self.faults.append("--set: every pool has 0 devices; give at least one n_<pool>")
