"""Packing on a Ray cluster: two nodes on this host, one of which is lost midway, give the bytes of one machine."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamvid.errors import InputError, StreamvidError
from streamvid.packing import run_ray
from streamvid.packing.index import index
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from streamvid.video.transcode import TranscodeOptions
from tests.packing.test_images import write_jpegs
from tests.support.clips import write
from tests.support.packed import digests
from tools.clips import Recipe

SHARD = 12_000
CONVERTED = PackOptions(transcode=TranscodeOptions(codec="hevc", gop=2, crf=10))


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for n in range(6):
        write(Recipe(width=96, height=64, frames=12, gop=6, b_frames=2, seed=n), folder / f"{n}.mp4")
    for n in range(6, 48):
        # As many names of the same bytes: what takes time is not making them.
        os.link(folder / f"{n % 6}.mp4", folder / f"{n}.mp4")
    (folder / "3-broken.mp4").write_bytes(b"no video" * 1000)
    return folder


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A Ray cluster of one node that nothing runs on; tests add others."""
    ray = pytest.importorskip("ray", reason="no Ray to test with: pip install 'streamvid[ray]'")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_DISABLE_IMPORT_WARNING", "1")
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 0, "object_store_memory": 100 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=options)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_a_lost_task_is_reported_with_the_reason() -> None:
    """With a stand-in for Ray, which need not be installed."""

    class RayError(Exception):
        pass

    class RayTaskError(RayError):
        pass

    def get(reference: object) -> object:
        raise RayError("the owner died\nand more")

    ray = SimpleNamespace(get=get, exceptions=SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError))
    with pytest.raises(StreamvidError, match=r"lost a task for good \(the owner died\): see its logs"):
        run_ray._result(ray, None)


def test_a_node_is_lost_midway(videos: Path, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = pack([videos], tmp_path / "here" / "ds", shard_size=SHARD, options=CONVERTED)
    assert len({int(entry.name) // 100 for entry in report.manifest.shards}) >= 4, "too few groups"
    nodes = [cluster.add_node(wait=False, num_cpus=1, object_store_memory=100 << 20) for _ in range(2)]
    cluster.wait_for_nodes(timeout=120)
    there = tmp_path / "there" / "ds"
    lost: list[int] = []

    def lose_one() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            written = len(list((there / "progress").glob("*.json")))
            if written >= 2:
                lost.append(written)
                cluster.remove_node(nodes[0], allow_graceful=False)
                return
            time.sleep(0.002)

    thread = threading.Thread(target=lose_one)
    thread.start()
    try:
        on_ray = pack([videos], there, shard_size=SHARD, options=CONVERTED, engine="ray", address=cluster.address)
    finally:
        thread.join()
    assert lost
    assert lost[0] < len(report.manifest.shards), "it was over before a node was lost"
    assert digests(there.parent) == digests(tmp_path / "here")
    assert on_ray.manifest == report.manifest
    assert on_ray.rejected == report.rejected
    assert [path.name for path in there.iterdir() if path.name.startswith(".")] == []
    # An engine is no option that decides bytes: what one has finished is there for the other.
    assert pack([videos], there, shard_size=SHARD, options=CONVERTED).was_there
    # With the node that is left, and a connection of the caller's own, which stays: an index of the same videos is that
    # of one machine, too.
    ray = pytest.importorskip("ray")
    ray.init(address=cluster.address, log_to_driver=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "user"))
    index(videos, tmp_path / "indexed" / "ds", fast=True)
    report = index(videos, tmp_path / "on-ray" / "ds", fast=True, engine="ray", address=cluster.address)
    assert (report.clips, len(report.rejected)) == (48, 1)
    assert digests(tmp_path / "on-ray") == digests(tmp_path / "indexed")
    # And so are folders of images, whose paths end in '/'.
    write_jpegs(tmp_path / "images/walk", ["1.jpg", "2.jpg", "3.jpg"])
    rate = PackOptions(fps=Fraction(24))
    pack(tmp_path / "images", tmp_path / "images-here" / "ds", options=rate)
    there = tmp_path / "images-on-ray"
    pack(tmp_path / "images", there / "ds", options=rate, engine="ray", address=cluster.address)
    assert digests(there) == digests(tmp_path / "images-here")
    assert ray.is_initialized()


def test_no_cluster(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(InputError, match=r"needs the package ray: pip install 'streamvid\[ray\]'"):
        pack([videos], tmp_path / "ds", engine="ray")
    assert not (tmp_path / "ds/dataset.json").exists()


def test_an_address_without_a_cluster(videos: Path, tmp_path: Path) -> None:
    """Ray would try for three minutes, and not see Ctrl-C."""
    said = r"no Ray cluster can be reached at '127\.0\.0\.1:1'.*check --address or RAY_ADDRESS"
    with pytest.raises(InputError, match=said):
        pack([videos], tmp_path / "ds", engine="ray", address="127.0.0.1:1")


def test_options_for_one_engine_alone(videos: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it is 'spark'"):
        pack([videos], tmp_path / "ds", engine="spark")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="--engine ray"):
        pack([videos], tmp_path / "ds", address="auto")
    with pytest.raises(InputError, match="leave out the workers"):
        pack([videos], tmp_path / "ds", engine="ray", workers=3)
