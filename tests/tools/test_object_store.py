"""What tools.bench.object_store makes of its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.bench.object_store import Condition, checks_of, pace_of, row_of
from tools.bench.store_data import make, spans
from tools.bench.store_ways import PEERS, Task, run_here


def figures(steady: float, sent: float = 1e6) -> dict[str, float]:
    return {
        "clips": 2 * steady, "seconds": 2.0, "first": 1.0, "steady": steady, "p50": 0.1, "p99": 0.2, "cpu": 1.0,
        "memory": 9.0,
        "sent": sent, "requests": 20,
    }  # fmt: skip


@pytest.mark.parametrize("good", [True, False])
def test_checks(good: bool) -> None:
    found: dict[tuple[Condition, str], dict[str, float] | str] = {}
    for workload in ("dense", "sparse"):
        for latency, clips in ((0.0, 100.0), (50.0, 100.0), (200.0, 95.0 if good else 85.0)):
            found[Condition(workload, latency, 100.0, False), "ranges"] = figures(clips)
        near = Condition(workload, 50.0, 100.0, False)
        found[near, "shards"] = figures(90.0, sent=1.1e7 if good else 7e6)
        found[near, "objects"] = figures(105.0 if good else 120.0)
        for peer in PEERS:
            found[near, peer] = figures(19.0 if good else 70.0)
        found[near, "lance"] = "not installed"
    checks = checks_of(found)
    assert len(checks) == 1 + 2 * (len(PEERS) - 1) + 1 + 2
    assert {check.passed for check in checks if "dense" in check.name or "sparse" in check.name} == {good} or not good
    assert all(check.passed for check in checks) == good
    assert sum(not check.passed for check in checks) == (0 if good else len(checks))


def test_a_loop_that_takes_its_time() -> None:
    """Its pace is a share of the rate without one; its 99th percentile is held against its median."""
    free = Condition("dense", 50.0, 100.0, False)
    paced = {stall: Condition("dense", 50.0, 100.0, False, stall) for stall in (0.0, 0.01)}
    found: dict[tuple[Condition, str], dict[str, float] | str] = {(free, "ranges"): figures(100.0)}
    assert pace_of(paced[0.01], found) == pytest.approx(8 / 80)
    assert pace_of(free, found) == 0
    for condition, late in ((paced[0.0], 0.14), (paced[0.01], 0.16)):
        found[condition, "ranges"] = figures(80.0) | {"p50": 0.1, "p99": late}
    assert [check.passed for check in checks_of(found)] == [True, False]
    assert row_of(paced[0.01], "ranges", found[paced[0.01], "ranges"])["workload"] == "dense paced, 1 % stall"


def test_rows_have_the_columns_of_the_issue() -> None:
    condition = Condition("dense", 50.0, 100.0, True)
    row = row_of(condition, "ranges", figures(100.0))
    assert row["clips/s"] == 100.0
    assert row["KB/clip"] == 5.0
    assert row["req/clip"] == 0.1
    assert row_of(condition, "dali", "no such package").keys() == row.keys()


def test_ways_on_local_files(tmp_path: Path) -> None:
    make(tmp_path, "dense", 2)
    for decode in (False, True):
        found = run_here(Task("local", "dense", 0, str(tmp_path), decode, 60.0))
        assert found["clips"] == 2
        assert found["memory"] > 10
    assert len(spans(str(tmp_path), "dense")) == 2
