"""Section 4: all-reduce and hop."""

from __future__ import annotations

import pytest

from dse.model.collectives import allreduce_s, hop_s


def test_allreduce_by_hand() -> None:
    # 8 devices, 16 MB over 400 GB/s at 50 %: 2 * 7/8 * 16e6 / 200e9 + 5 us
    assert float(allreduce_s(16e6, 8, 400e9, 0.5, 5e-6)) == pytest.approx(5e-6 + 1.75 * 16e6 / 200e9, rel=1e-12)


def test_one_device_needs_none() -> None:
    assert float(allreduce_s(16e6, 1, 400e9, 0.5, 5e-6)) == 0.0


def test_nothing_to_send_costs_the_latency() -> None:
    assert allreduce_s(0.0, [1, 2, 64], 400e9, 0.5, 5e-6).tolist() == [0.0, 5e-6, 5e-6]


def test_small_messages_hardly_depend_on_g() -> None:
    assert float(allreduce_s(16384, 8, 450e9, 0.75, 3.8e-6)) == pytest.approx(3.8e-6, rel=0.03)


def test_hop_by_hand() -> None:
    assert float(hop_s(3e6, 150e9, 0.8, 5e-6)) == pytest.approx(5e-6 + 3e6 / 120e9, rel=1e-12)
    assert float(hop_s(0.0, 150e9, 0.8, 5e-6)) == 5e-6


def test_arrays_equal_scalars() -> None:
    sizes, groups = [1e3, 1e6, 1e9], [1, 2, 8]
    both = allreduce_s([[s] for s in sizes], groups, 1e11, 0.7, 1e-6)
    assert both.tolist() == [[float(allreduce_s(s, g, 1e11, 0.7, 1e-6)) for g in groups] for s in sizes]
    assert hop_s(sizes, 1e11, 0.7, 1e-6).tolist() == [float(hop_s(s, 1e11, 0.7, 1e-6)) for s in sizes]
