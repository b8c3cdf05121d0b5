"""The referee's engine: conservation, queues that theory knows, and the model where it must agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import small_study

from dse.model.decode_load import step_grid
from dse.replay import Replayed, replay
from dse.replay_crew import Requests
from dse.resolve import Study
from search_spaces.pd_serving import LaidOut

CHAT = [{"name": "chat", "share": 1.0, "input_tokens": 1024, "output_tokens": 256}]
TWO = [
    {"name": "chat", "share": 0.7, "input_tokens": 512, "output_tokens": 200},
    {"name": "long", "share": 0.3, "input_tokens": 3000, "output_tokens": 60},
]
SPLIT = {"n_gpu": "8", "n_wse": "1", "role_gpu": "prefill", "role_wse": "decode", "link_gb_s": "400"}
BOTH = {"n_gpu": "8", "n_wse": "0", "role_gpu": "both"}


def design(settings: dict[str, str], requests: list[dict[str, Any]] = CHAT, **workload: Any) -> LaidOut:
    study = Study.from_dict(small_study(workload={"model": "llama-2-7b", "requests": requests, **workload}))
    laid_out: LaidOut = study.space.laid_out(settings)  # type: ignore[attr-defined]
    return laid_out


def stream(n: int, rate: float, shapes: list[dict[str, Any]] = CHAT, seed: int = 0, **fixed: float) -> Requests:
    rng = np.random.default_rng(seed)
    label = rng.choice(len(shapes), size=n, p=[s["share"] for s in shapes])
    tokens = np.array([[s["input_tokens"], s["output_tokens"]] for s in shapes], dtype=np.float64)[label]
    return Requests(
        arrival_s=np.cumsum(rng.exponential(1.0, n)) / rate,
        input_tokens=tokens[:, 0],
        output_tokens=np.full(n, fixed["output_tokens"]) if "output_tokens" in fixed else tokens[:, 1],
        label=label.astype(np.int64),
    )


def run(d: LaidOut, requests: Requests, between_s: tuple[float, float] | None = None) -> Replayed:
    return replay(d.system, d.rows, d.link, d.flow, requests, between_s)


@pytest.mark.parametrize("routing", ["split", "work_stealing"])
@pytest.mark.parametrize("settings", [SPLIT, BOTH])
def test_every_request_is_served_once_and_in_order(settings: dict[str, str], routing: str) -> None:
    kept = {k: v for k, v in settings.items() if routing == "split" or not k.startswith("role")}
    d = design(kept, TWO, routing=routing)
    requests = stream(600, 0.8 * float(d.flow.rate[0]), TWO)
    found = run(d, requests)
    assert np.isfinite(found.first_s).all()
    assert (found.first_s > requests.arrival_s).all()
    assert (found.finish_s > found.first_s).all()
    assert ((found.busy_prefill + found.busy_decode) <= 1 + 1e-9).all()


def test_the_same_requests_give_the_same_replay() -> None:
    d = design({k: v for k, v in SPLIT.items() if "role" not in k}, TWO, routing="work_stealing")
    requests = stream(300, 0.8 * float(d.flow.rate[0]), TWO)
    one, two = run(d, requests), run(d, requests)
    np.testing.assert_array_equal(one.finish_s, two.finish_s)


@pytest.mark.parametrize("settings", [SPLIT, BOTH])
def test_a_lone_request_takes_its_pass_its_transfer_and_its_steps(settings: dict[str, str]) -> None:
    d = design(settings)
    found = run(d, stream(1, 1.0))
    pools, kv = d.system.pools, float(d.system.class_kv_byte[0])
    crosses = settings is SPLIT
    pool = pools[1 if crosses else 0]
    one = np.ones((1, 1))
    prefill_s = float(pools[0].prefill(one, one).latency_s[0, 0])
    ttft = float(found.first_s[0] - stream(1, 1.0).arrival_s[0])
    assert ttft == pytest.approx(prefill_s + (kv / 400e9 if crosses else 0.0), rel=1e-9)
    steps_s = float(pool.decode(one, one).occupancy_s[0, 0]) * 255
    assert float(found.finish_s[0] - found.first_s[0]) == pytest.approx(steps_s, rel=1e-3)


def test_one_prefilling_instance_is_an_m_d_1_queue() -> None:
    """Prompts of one length at one instance wait rho s/(2 (1 - rho)), exactly (Pollaczek and Khinchine)."""
    d = design({**SPLIT, "n_gpu": "1", "link_gb_s": "1e6"})
    one = np.ones((1, 1))
    service_s = float(d.system.pools[0].prefill(one, one).latency_s[0, 0])
    transfer_s = float(d.system.class_kv_byte[0]) / 1e15
    rho, seen = 0.7, []
    for seed in range(8):
        requests = stream(4000, rho / service_s, seed=seed, output_tokens=1)
        seen.append(float((run(d, requests).first_s - requests.arrival_s).mean()) - service_s - transfer_s)
    assert np.mean(seen) == pytest.approx(rho * service_s / (2 * (1 - rho)), rel=0.05)


@pytest.mark.parametrize("settings", [SPLIT, BOTH])
def test_a_flood_is_served_at_about_the_predicted_capacity(settings: dict[str, str]) -> None:
    d = design(settings, TWO)
    capacity = float(d.flow.rate[0])
    n = 3000
    flood = stream(n, 1.3 * capacity, TWO)
    span_s = float(flood.arrival_s[-1])
    found = run(d, flood, (0.4 * span_s, span_s))
    assert found.output_tok_s == pytest.approx(capacity * d.system.output_tok, rel=0.08)


def test_little_holds_for_the_decode_batch() -> None:
    """Mean sequences in decode = rate x time in decode: what the model of the settling batch stands on."""
    d = design(SPLIT)
    rate = 0.6 * float(d.flow.rate[0])
    requests = stream(3000, rate)
    found = run(d, requests)
    inside_s = float((found.finish_s - found.first_s)[500:].mean())
    g = np.ones((1, 1))
    grid, step_s = step_grid(d.system.pools[1], g, 256.0)
    seen = rate * inside_s + 1.0
    step = float(np.interp(seen, grid, step_s[0, :, 0]))
    assert inside_s / 255 == pytest.approx(step, rel=0.05)


def test_nothing_is_held_beyond_its_memory_or_batch() -> None:
    d = design({**SPLIT, "max_decode_batch_wse": "4"})
    requests = stream(400, 1.2 * float(d.flow.rate[0]))
    found = run(d, requests)
    moments = np.concatenate([found.first_s, found.finish_s])
    change = np.concatenate([np.ones(400), -np.ones(400)])[np.argsort(moments, kind="stable")]
    assert np.isfinite(found.finish_s).all()
    assert np.cumsum(change).max() > 4  # some waited for room, with their first token
    tpot = (found.finish_s - found.first_s) / 255
    assert tpot.max() > 1.5 * tpot.min()


def test_work_stealing_uses_what_stands_idle() -> None:
    """A mix for which the wafer is planned, then prompts that flood the GPUs: others take some."""
    settings = {k: v for k, v in SPLIT.items() if "role" not in k}
    d = design(settings, TWO, routing="work_stealing")
    requests = stream(1500, 1.1 * float(d.flow.rate[0]), TWO)
    assert run(d, requests).stolen > 0


def test_at_rate_stretches_time_and_nothing_else() -> None:
    requests = stream(500, 3.0)
    faster = requests.at_rate(30.0)
    assert faster.arrival_s[0] == 0
    assert (len(faster) - 1) / faster.arrival_s[-1] == pytest.approx(30.0)
    np.testing.assert_allclose(
        np.diff(faster.arrival_s) / np.diff(requests.arrival_s),
        faster.arrival_s[-1] / np.diff(requests.arrival_s).sum(),
    )
