"""What differs between two studies: values of the files, and numbers of what their names resolve to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

import numpy as np

from dse.resolve import Study

PRINTED: Final = 1e-12


@dataclass(frozen=True, kw_only=True)
class Change:
    """One value that differs between two studies, or between what their names resolve to."""

    key: str
    before: str
    after: str
    resolved: bool
    """Not of the study file itself, but of the device, link or model that it names."""


def changes(before: Study, after: Study) -> list[Change]:
    """Every differing value: of the studies by dotted key, then of what their names resolve to."""
    given = [_difference(k, a, b, resolved=False) for k, a, b in _differing(_flat_study(before), _flat_study(after))]
    known = [_difference(k, a, b, resolved=True) for k, a, b in _differing(_flat_facts(before), _flat_facts(after))]
    return given + known


def _difference(key: str, before: object, after: object, *, resolved: bool) -> Change:
    return Change(key=key, before=_text(before), after=_text(after), resolved=resolved)


def _text(value: object) -> str:
    if value is None:
        return "not there"
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(_text, value)) if isinstance(value, (list, tuple)) else str(value)


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for key in dict.fromkeys([*a, *b]):
        if not _equal(a.get(key), b.get(key)):
            yield key, a.get(key), b.get(key)


def _equal(a: object, b: object) -> bool:
    """Whether two values are the same; numbers to twelve digits, as files print them."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=PRINTED)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return a == b


def _flat_study(study: Study) -> dict[str, Any]:
    """The study file as dotted keys; pools and request classes by name."""
    raw = study.envelope.model_dump(mode="json")
    raw["pool"] = {p.pop("name", "") or p["device"]: p for p in raw["pool"]}
    requests = raw["workload"].get("requests")
    if requests:
        raw["workload"]["requests"] = {r.get("name") or str(k): r for k, r in enumerate(requests)}
    raw.pop("compute", None)
    return dict(_flat(raw, ""))


def _flat(node: object, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _flat(value, f"{path}.{key}" if path else str(key))
    elif node is not None:
        yield path, node


def _flat_facts(study: Study) -> dict[str, Any]:
    """Numbers behind the names: of each pool's device, of the model, and of each link on offer."""
    found: dict[str, Any] = {}
    for offer in study.problem.pools:
        found |= dict(_numbers(offer.device, offer.name))
    found |= dict(_numbers(getattr(study.problem, "model", None), study.envelope.model_dump()["workload"]["model"]))
    links = study.problem.links
    for k, name in enumerate(getattr(study.problem, "link_names", ())):
        for part in ("byte_s", "usd_per_h", "power_w"):
            found[f"link {name}.{part}"] = float(np.asarray(getattr(links, part))[k])
    return found


def _numbers(node: object, path: str) -> Iterator[tuple[str, Any]]:
    """Numbers of a dataclass, its parts and its tables."""
    if is_dataclass(node) and not isinstance(node, type):
        for f in fields(node):
            yield from _numbers(getattr(node, f.name), f"{path}.{f.name}")
    elif isinstance(node, Mapping):
        for key, value in node.items():
            yield from _numbers(value, f"{path}.{key}")
    elif isinstance(node, (int, float, str, tuple)) and not isinstance(node, bool):
        yield path, node
