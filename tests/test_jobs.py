"""The jobs file: all its faults at once, its sweeps as a product, its identifiers stable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w
from conftest import small_study

from dse.errors import InputError
from dse.jobs import read_jobs


def written(folder: Path, **tables: Any) -> Path:
    """A jobs file beside a small study."""
    (folder / "small.toml").write_text(tomli_w.dumps(small_study()))
    path = folder / "jobs.toml"
    path.write_text(tomli_w.dumps({"name": "jobs", **tables}))
    return path


def test_a_sweep_is_the_product_of_its_keys(tmp_path: Path) -> None:
    sweep = {"limits.cost_usd_per_h": [200, 400], "workload.model": ["llama-2-7b", "llama-3.1-8b"]}
    _, jobs = read_jobs(written(tmp_path, job=[{"study": "small.toml"}, {"study": "small.toml", "sweep": sweep}]))
    assert len({job.name for job in jobs}) == 5
    assert jobs[0].name == "small"
    assert jobs[0].load().envelope.limits.bounds() == {}
    assert [j.load().envelope.limits.bounds()["cost_usd_per_h"][1] for j in jobs[1:]] == [200, 200, 400, 400]
    models = [j.load().envelope.workload.model for j in jobs[1:3]]  # type: ignore[attr-defined]
    assert models == ["llama-2-7b", "llama-3.1-8b"]


def test_identifiers_stay_when_jobs_move(tmp_path: Path) -> None:
    one = {"limits.cost_usd_per_h": [200, 400], "search.seed": [1]}
    other = {"search.seed": [2, 1], "limits.cost_usd_per_h": [400]}
    names = [
        {j.name: dict(j.changes) for j in read_jobs(written(tmp_path, job=[{"study": "small.toml", "sweep": s}]))[1]}
        for s in (one, other)
    ]
    (same,) = set(names[0]) & set(names[1])
    assert names[0][same] == names[1][same] == {"limits.cost_usd_per_h": 400, "search.seed": 1}


def test_a_key_may_lead_into_a_list(tmp_path: Path) -> None:
    sweep = {"pool.0.device": ["h100-80gb-sxm"], "pool.1.count": [[0, 2]]}
    _, (job,) = read_jobs(written(tmp_path, job=[{"study": "small.toml", "sweep": sweep}]))
    study = job.load()
    assert study.envelope.pool[0].device == "h100-80gb-sxm"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        ("pool.7.device", "'7' is no position in a list of 2"),
        ("pool.gpu.device", "'gpu' is no position in a list of 2"),
        ("name.first", "there is no table to hold 'first'"),
        ("limits.cost", "no result column named 'cost'"),
        ("search.methods", "no key named 'methods'; did you mean method"),
    ],
)
def test_a_key_that_leads_nowhere_is_named_when_its_job_loads(key: str, fault: str, tmp_path: Path) -> None:
    _, (job,) = read_jobs(written(tmp_path, job=[{"study": "small.toml", "sweep": {key: [1]}}]))
    with pytest.raises(InputError, match=fault):
        job.load()


def test_all_faults_of_a_jobs_file_come_together(tmp_path: Path) -> None:
    path = written(tmp_path, time_limit_s=-1, max_disk=5, job=[{"study": "small.toml", "sweep": {"search.seed": []}}])
    with pytest.raises(InputError) as error:
        read_jobs(path)
    text = str(error.value)
    assert "[time_limit_s]" in text
    assert "did you mean max_disk_gb" in text
    assert "a swept key needs at least one value" in text


def test_studies_that_are_missing_or_listed_twice_are_named(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(tomli_w.dumps(small_study()))
    entries = [{"study": s} for s in ("small.toml", "none.toml", "small.toml", "other.toml")]
    with pytest.raises(InputError) as error:
        read_jobs(written(tmp_path, job=entries))
    assert len(error.value.faults) == 3
    assert "none.toml: no such file" in error.value.faults[0]
    assert "small is listed twice" in error.value.faults[1]
    assert "are both named 'small'; rename one" in error.value.faults[2]


def test_a_sweep_too_large_is_refused_before_it_is_expanded(tmp_path: Path) -> None:
    sweep = {f"limits.c{i}": list(range(100)) for i in range(8)}
    with pytest.raises(InputError, match="more than 10,000 jobs"):
        read_jobs(written(tmp_path, job=[{"study": "small.toml", "sweep": sweep}]))


@pytest.mark.parametrize("text", ["", "name = 1", "name = 'a'\njob = []", "name = 'a'\n[job]\nstudy = 'small.toml'"])
def test_a_file_that_is_no_jobs_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    with pytest.raises(InputError):
        read_jobs(path)
