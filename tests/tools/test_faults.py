"""Whole epochs over damaged clips, on ranks that are killed and resized: real processes, and SIGKILL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path

import pytest

from tests.support.forked_python import LOADERS
from tools import corpus
from tools.bench.faults import Run, bucket, fail, run, spoil

CLIPS = 40


@pytest.fixture(scope="module", autouse=True)
def ranks_have_imported_pytorch() -> Iterator[None]:
    """Ranks are forked from a server of this module's own, which has."""
    server = forkserver._forkserver  # type: ignore[attr-defined]
    server._stop()
    server.set_forkserver_preload(["tools.bench.faults", "torch", "av", *LOADERS])
    server.ensure_running()
    yield
    server._stop()


def test_a_damaged_epoch_that_is_killed_and_resized_twice(tmp_path: Path) -> None:
    made = corpus.make(tmp_path, CLIPS, codecs=["h264"])
    assert sorted(made.bad.values()) == sorted(corpus.WAYS)
    clean = Run(str(made.whole), tmp_path / "clean", "cpu", CLIPS, ranks=(1,))
    whole = run(clean)
    assert whole.problems(whole, {}, "cpu") == []
    assert len(whole.clips) == CLIPS
    damaged = Run(
        str(made.damaged), tmp_path / "run", "cpu", CLIPS, ranks=(2, 3, 1), stand_ins=made.stand_ins, least_s=2.0
    )
    found = run(damaged)
    assert found.problems(whole, made.bad, "cpu") == []
    assert len(list((tmp_path / "run").glob("*.jsonl"))) == 6
    # What it is held against would notice.
    (row, clip), *rest = found.clips
    assert replace(found, clips=tuple(rest)).problems(whole, made.bad, "cpu") == [f"clip {row} did not come"]
    wrong = replace(found, clips=((row, replace(clip, digest="")), *found.clips[1:], found.clips[1]))
    assert len(wrong.problems(whole, made.bad, "cpu")) == 2
    assert len(replace(found, reported=found.reported[1:]).problems(whole, made.bad, "cpu")) == 1


def test_the_same_from_a_failing_bucket_with_a_cache_that_is_altered(tmp_path: Path) -> None:
    pytest.importorskip("s3fs", reason="no s3fs to test with: pip install s3fs")
    made = corpus.make(tmp_path, CLIPS, codecs=["vp9"], ways=["zeros", "bit", "index"])
    clean = Run(str(made.whole), tmp_path / "clean", "cpu", CLIPS, ranks=(1,))
    with bucket(made.damaged) as (site, url, environment):
        fail(site, 0.2)
        cached = Run(
            url, tmp_path / "run", "cpu", CLIPS, ranks=(2, 1), cached=True, environment=environment, at_kill=spoil
        )
        found = run(cached)
    assert found.problems(run(clean), made.bad, "cpu") == []
