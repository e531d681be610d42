"""Groups and shard names; and the memory that a source takes before it is packed."""

from __future__ import annotations

import itertools
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.dataset.dataset import Dataset
from streamvid.errors import InputError
from streamvid.packing.job_spec import plan_job
from streamvid.packing.options import FixedLength, PackOptions
from streamvid.packing.pack import pack
from streamvid.packing.partition import PARTS, partition
from tests.support.clips import write
from tools.clips import Recipe


@given(
    st.lists(st.integers(0, 50_000_000), min_size=1, max_size=60),
    st.integers(1, 10_000_000),
    st.integers(0, 10_000),
)
def test_groups_are_in_order_not_too_large_and_have_names(sizes: list[int], shard_size: int, first: int) -> None:
    groups = partition(sizes, shard_size, first=first)
    assert [n for group in groups for n in range(group.start, group.stop)] == list(range(len(sizes)))
    free = first
    for group in groups:
        counted = [size or 1 << 20 for size in sizes[group.start : group.stop]]
        assert len(counted) == 1 or sum(counted) <= 4 * shard_size
        assert group.first >= free
        assert group.first % PARTS == 0
        free = group.first + group.names
        # A shard of the usual size for every fifth of one, or of a MiB where shards are smaller.
        assert group.names >= PARTS
        assert group.names * max(shard_size, 1 << 20) >= 5 * sum(counted)
    for one, other in itertools.pairwise(groups):
        # No two neighbours would do as one.
        assert sum(size or 1 << 20 for size in sizes[one.start : other.start + 1]) > 4 * shard_size


def test_a_group_does_not_depend_on_what_comes_after() -> None:
    sizes = [5, 9, 20, 3, 3, 3, 40, 1]
    assert partition(sizes, 5)[:2] == partition([*sizes, 7, 8], 5)[:2]


def test_shard_names_that_run_out() -> None:
    with pytest.raises(InputError, match="larger shard size"):
        partition([1 << 50] * 3, 1 << 20)
    assert partition([1 << 50] * 3, 4 << 30)[-1].first < 10**8


def test_the_last_shard_takes_what_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Recipe(width=64, height=64, frames=20, gop=1, b_frames=0), tmp_path / "a.mp4")
    write(Recipe(width=64, height=64, frames=2, gop=1, b_frames=0), tmp_path / "b.mp4")
    monkeypatch.setattr("streamvid.packing.partition.PARTS", 4)
    options = PackOptions(cutting=FixedLength(1, "frames"))
    report = pack([tmp_path / "a.mp4", tmp_path / "b.mp4"], tmp_path / "ds", shard_size=1, options=options)
    assert [(entry.name, entry.clips) for entry in report.manifest.shards] == [
        ("00000000", 1), ("00000001", 1), ("00000002", 1), ("00000003", 17), ("00000004", 1), ("00000005", 1),
    ]  # fmt: skip
    assert len(Dataset.open(tmp_path / "ds")) == 22


def test_a_video_takes_little_memory_until_it_is_packed(tmp_path: Path) -> None:
    """The parent knows all videos at once: 100,000 must not take more than 1 GiB, with all that goes with it."""
    count = 5_000
    rows = [f"folder-{n // 100}/clip-{n}.mp4,class {n % 7},caption number {n}" for n in range(count)]
    (tmp_path / "list.csv").write_text("path,label,caption\n" + "\n".join(rows) + "\n")
    tracemalloc.start()
    try:
        order = plan_job(
            [str(tmp_path / "list.csv")],
            str(tmp_path / "ds"),
            labels=None,
            metadata=[],
            cuts=None,
            shard_size=1 << 28,
            name=None,
            options=PackOptions(),
            base=None,
        )
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(order.sources) == count
    assert kept < 2_000 * count
    assert peak < 6_000 * count
