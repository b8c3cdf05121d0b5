"""Section 7: power and cost of what is bought."""

from __future__ import annotations

import math

import pytest

from dse.model.cost import amortised_usd_per_h, energy_usd_per_h, upkeep_usd_per_h, usd_per_mtok
from dse.model.power import mean_w, provisioned_w


def test_provisioned_by_hand() -> None:
    assert float(provisioned_w(16, 400, 250)) == 16 * 650
    assert float(provisioned_w(0, 400, 250)) == 0.0


def test_mean_by_hand() -> None:
    assert float(mean_w(16, 0.25, 52, 400, 250)) == pytest.approx(16 * (250 + 52 + 348 * 0.25), rel=1e-12)
    assert float(mean_w(16, 0.0, 52, 400, 250)) == 16 * 302
    assert float(mean_w(16, 1.0, 52, 400, 250)) == float(provisioned_w(16, 400, 250))


def test_owning_by_hand() -> None:
    # 2.5 MUSD over 5 years with 4 % upkeep: (500 k + 100 k) / 8760
    assert float(amortised_usd_per_h(2.5e6, 5, 0.04)) == pytest.approx(600e3 / 8760, rel=1e-12)
    assert float(upkeep_usd_per_h(2.5e6, 0.04)) == pytest.approx(100e3 / 8760, rel=1e-12)
    assert float(amortised_usd_per_h(0.0, 5, 0.04)) == 0.0


def test_energy_by_hand() -> None:
    assert float(energy_usd_per_h(12_500, 0.1)) == pytest.approx(1.25, rel=1e-12)


def test_million_tokens_by_hand() -> None:
    # 72 USD/h at 1000 tok/s: 3.6 Mtok/h, 20 USD each
    assert float(usd_per_mtok(72.0, 1000.0)) == pytest.approx(20.0, rel=1e-12)
    assert float(usd_per_mtok(72.0, 0.0)) == math.inf
    assert float(usd_per_mtok(0.0, 10.0)) == 0.0


def test_arrays_equal_scalars() -> None:
    n = [0, 1, 100]
    assert provisioned_w(n, 400, 250).tolist() == [float(provisioned_w(x, 400, 250)) for x in n]
    assert mean_w(n, 0.4, 52, 400, 250).tolist() == [float(mean_w(x, 0.4, 52, 400, 250)) for x in n]
    assert amortised_usd_per_h(n, 4, 0.05).tolist() == [float(amortised_usd_per_h(x, 4, 0.05)) for x in n]
    assert usd_per_mtok(5.0, n).tolist() == [float(usd_per_mtok(5.0, x)) for x in n]
