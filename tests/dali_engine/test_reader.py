"""Index files and MP4 headers: with them, DALI reads the wanted packets in the plan's order."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamvid.arrays import Int64, UInt8
from streamvid.bitstream.vpx import vp8_sample_description
from streamvid.dali_engine.reader import MAX_RANGES, TAR_BLOCK, VideoSource, video_source, write_indexes
from streamvid.video.packet_selection import PacketSelection, byte_ranges

STSD = vp8_sample_description(width=64, height=48, full_range=False)


@dataclass(frozen=True)
class Clip:
    """A file of random bytes, of which some are the packets of a clip.

    Attributes:
        data: the shard.
        origin: where the clip begins in it.
        packets: the wanted ones.
    """

    data: UInt8
    origin: int
    packets: PacketSelection

    def source(self, path: str, gap: int) -> VideoSource:
        spans = byte_ranges(self.packets, gap=gap)
        return video_source(path, self.origin, self.packets, spans, stsd=STSD, width=64, height=48)

    def wanted(self) -> list[bytes]:
        """The bytes of the packets, in decode order."""
        starts = self.origin + self.packets.offsets
        return [self.data[s : s + n].tobytes() for s, n in zip(starts, self.packets.sizes, strict=True)]


def make_clip(sizes: list[int], gaps: list[int], origin: int, seed: int = 0) -> Clip:
    rng = np.random.default_rng(seed)
    size = np.array(sizes, dtype=np.int64)
    offsets = np.cumsum(size + gaps[: len(sizes)]) - size
    data = rng.integers(0, 256, origin + int(offsets[-1] + size[-1]) + 700, dtype=np.uint8)
    zeros: Int64 = np.zeros(len(size), dtype=np.int64)
    packets = PacketSelection(
        offsets, size, rng.permutation(len(size)), zeros[:1], gops=zeros, starts=zeros[:1], numbers=zeros, crc32c=zeros
    )
    return Clip(data, origin, packets)


def join(source: VideoSource, data: UInt8) -> bytes:
    """What the decoder gets: the header, and the ranges behind it."""
    return b"".join([source.header.tobytes(), *(data[start:end].tobytes() for start, end in source.ranges.tolist())])


@given(
    st.lists(st.tuples(st.integers(1, 900), st.integers(0, 3000)), min_size=1, max_size=60),
    st.integers(0, 4000),
    st.sampled_from([0, 600, 1 << 16]),
)
def test_the_header_and_the_ranges_are_an_mp4_of_the_packets(
    packets: list[tuple[int, int]], origin: int, gap: int
) -> None:
    clip = make_clip([size for size, _ in packets], [before for _, before in packets], origin)
    source = clip.source("x.tar", gap)
    assert len(source.ranges) <= MAX_RANGES
    assert not (source.ranges[:, 0] % TAR_BLOCK).any()
    with av.open(io.BytesIO(join(source, clip.data))) as container:
        read = [(bytes(packet), packet.pts) for packet in container.demux(video=0) if packet.size]
    assert [data for data, _ in read] == clip.wanted()
    times = np.array([pts for _, pts in read])
    assert times.min() >= 0
    np.testing.assert_array_equal(np.argsort(np.argsort(times)), clip.packets.display_order)


def test_ranges_that_lie_closest_are_joined() -> None:
    apart = [5000] * 2 * MAX_RANGES
    apart[7] = apart[40] = 900
    clip = make_clip([100] * len(apart), apart, 0)
    source = clip.source("x.tar", 0)
    assert len(source.ranges) == MAX_RANGES
    spans = byte_ranges(clip.packets, gap=0)
    inside = np.searchsorted(source.ranges[:, 0], spans[:, 0], side="right") - 1
    assert (spans[:, 1] <= source.ranges[inside, 1]).all()
    assert inside[7] == inside[6]
    assert inside[40] == inside[39]


def test_dali_reads_in_the_order_of_the_sources(tmp_path: Path) -> None:
    from nvidia.dali import fn, pipeline_def

    paths = []
    clips = [make_clip([300] * (1 + n), [0, 9000, 1, 70_000, 5], 512 * n + 33 * n, seed=n) for n in range(5)]
    for number, clip in enumerate(clips):
        paths.append(tmp_path / f"a shard {number}.tar")
        clip.data.tofile(paths[-1])
    order = [3, 0, 0, 4, 1, 2, 2, 3]
    sources = [clips[n].source(str(paths[n]), 0) for n in order]
    (tmp_path / "indexes").mkdir()
    files = write_indexes(sources, tmp_path / "indexes", spare=3)
    assert Path(files.index_paths[-1]).read_text().count(" spare") == 3
    assert files.paths == [str(paths[n]) for n in (3, 0, 4, 1, 2, 3)]
    assert len(files.extensions) == 5

    @pipeline_def(batch_size=len(order), num_threads=1, device_id=None, prefetch_queue_depth=1)
    def pipeline() -> object:
        return tuple(
            fn.readers.webdataset(
                paths=files.paths,
                index_paths=files.index_paths,
                ext=files.extensions,
                missing_component_behavior="empty",
                dont_use_mmap=True,
            )
        )

    pipe = pipeline()
    pipe.build()
    components = pipe.run()
    for place, (number, source) in enumerate(zip(order, sources, strict=True)):
        got = b"".join(np.array(component.at(place)).tobytes() for component in components)
        assert source.header.tobytes() + got == join(source, clips[number].data)
