"""Section 4: what fits while serving."""

from __future__ import annotations

import pytest

from dse.model.memory import largest_batch, resident_byte, usable_byte


def test_resident_by_hand() -> None:
    # 14 GB over 2 devices, 10 sequences of 1 GB of which a device holds an eighth
    assert float(resident_byte(14e9, 2, 10, 1e9, 0.125)) == pytest.approx(7e9 + 1.25e9, rel=1e-12)
    assert float(resident_byte(14e9, 1, 0, 1e9, 1.0)) == 14e9


def test_usable_by_hand() -> None:
    assert float(usable_byte(80e9, 0.1)) == pytest.approx(72e9, rel=1e-12)
    assert float(usable_byte(80e9, 0.0)) == 80e9


def test_llama_on_a100_by_hand() -> None:
    weights, sequence = 6_738_415_616 * 2, 1280 * 524_288
    want = int((36e9 - weights) // sequence)
    assert want == 33
    assert float(largest_batch(36e9, weights, 1, sequence, 1.0)) == want
    assert float(resident_byte(weights, 1, want, sequence, 1.0)) <= 36e9
    assert float(resident_byte(weights, 1, want + 1, sequence, 1.0)) > 36e9


def test_weights_that_do_not_fit_leave_no_batch() -> None:
    assert float(largest_batch(10e9, 14e9, 1, 1e9, 1.0)) == 0.0
    assert float(largest_batch(14e9, 14e9, 1, 1e9, 1.0)) == 0.0
    assert float(largest_batch(14.5e9, 14e9, 1, 1e9, 1.0)) == 0.0
    assert float(largest_batch(15e9, 14e9, 1, 1e9, 1.0)) == 1.0


def test_arrays_equal_scalars() -> None:
    g = [1, 2, 4, 8]
    assert largest_batch(36e9, 26e9, g, 1e9, 0.5).tolist() == [float(largest_batch(36e9, 26e9, x, 1e9, 0.5)) for x in g]
    assert resident_byte(26e9, g, 3, 1e9, 0.5).tolist() == [float(resident_byte(26e9, x, 3, 1e9, 0.5)) for x in g]
