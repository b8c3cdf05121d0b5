"""A small study of several scenarios that many tests use."""

from __future__ import annotations

from typing import Any

CHAT = {"name": "chat", "share": 0.7, "input_tokens": 512, "output_tokens": 256}
SUMMARY = {"name": "summary", "share": 0.3, "input_tokens": 3000, "output_tokens": 100}


def robust_study(**changes: Any) -> dict[str, Any]:
    """A100 + H100 on Llama-2-7B in two scenarios; `changes` replace whole top-level tables."""
    study: dict[str, Any] = {
        "name": "robust",
        "paradigm": "robust_serving",
        "workload": {"model": "llama-2-7b", "requests": [CHAT, SUMMARY]},
        "scenario": [
            {"name": "day", "weight": 3, "demand_requests_s": 8, "mix": {"chat": 0.9, "summary": 0.1}},
            {"name": "night", "demand_requests_s": 2, "mix": {"chat": 0.1, "summary": 0.9}},
        ],
        "pool": [
            {"device": "a100-40gb-sxm", "name": "a", "count": {"min": 0, "max": 4, "step": 2}, "instance_size": [1, 2]},
            {"device": "h100-80gb-sxm", "name": "h", "count": {"min": 0, "max": 3}},
        ],
        "link": {"bandwidth_gb_s": [2, 50]},
        "objectives": {"maximise": ["headroom"], "minimise": ["cost_usd_per_h"]},
        "search": {"resolution_frac": 0},
    }
    return study | changes
