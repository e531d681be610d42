"""Headers of MP4s, as FFmpeg reads them."""

from __future__ import annotations

import io
import struct

import av
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamvid.bitstream.vpx import vp8_sample_description
from streamvid.mp4.boxes import find_box
from streamvid.mp4.writer import SLICE_TIMESCALE, clip_header, composition_offsets, decode_times, slice_header

STSD = vp8_sample_description(width=64, height=48, full_range=False)


@given(st.permutations(range(9)))
def test_composition_offsets(ranks: list[int]) -> None:
    offsets = composition_offsets(np.array(ranks))
    assert offsets.min() == 0
    shown = np.arange(9) + offsets
    assert np.argsort(shown, kind="stable").tolist() == np.argsort(ranks).tolist()
    assert np.all(np.diff(np.sort(shown)) == 1)


def test_no_packets() -> None:
    head = slice_header(STSD, np.empty(0, dtype=np.int64), width=64, height=48)
    with av.open(io.BytesIO(head)) as container:
        context = container.streams.video[0].codec_context
        assert (context.name, context.width, context.height) == ("vp8", 64, 48)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=30))
def test_what_ffmpeg_reads_of_a_slice(packets: list[int]) -> None:
    sizes = np.array(packets, dtype=np.int64)
    head = slice_header(STSD, sizes, width=64, height=48)
    data = np.random.default_rng(0).bytes(int(sizes.sum()))
    with av.open(io.BytesIO(head + data), "r") as container:
        stream = container.streams.video[0]
        got = [p for p in container.demux(stream) if p.size]
        assert [p.size for p in got] == sizes.tolist()
        assert b"".join(bytes(p) for p in got) == data
        assert [p.pos for p in got] == (len(head) + np.concatenate([[0], np.cumsum(sizes)[:-1]])).tolist()
        base = stream.time_base
        assert base is not None
        assert [(p.dts or 0) * base * SLICE_TIMESCALE for p in got] == list(range(len(sizes)))


def test_packets_beyond_4_gib_have_64_bit_positions() -> None:
    sizes = np.array([2**31, 2**31])
    clip = clip_header(
        STSD, pts=np.array([0, 1]), sizes=sizes, sync=np.ones(2, dtype=bool), shown=(0, 2), width=64, height=48,
        rotation=0, timescale=30,
    )  # fmt: skip
    for head in (slice_header(STSD, sizes, width=64, height=48), clip):
        found = find_box(head, b"co64")
        assert found is not None
        assert struct.unpack_from(">IQ", head, found[0] + 4) == (1, len(head))
        assert head[-16:] == struct.pack(">I4sQ", 1, b"mdat", 16 + 2**32)


def test_64_bit_durations() -> None:
    times = np.arange(6, dtype=np.int64) * 2**30
    head = clip_header(
        STSD, pts=times, sizes=np.ones(6, dtype=np.int64), sync=np.ones(6, dtype=bool), shown=(0, 6 * 2**30), width=64,
        height=48, rotation=0, timescale=1000,
    )  # fmt: skip
    with av.open(io.BytesIO(head + b"abcdef")) as container:
        base = container.streams.video[0].time_base
        assert base is not None
        assert [p.pts * base * 1000 for p in container.demux(video=0) if p.pts is not None] == times.tolist()


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=20))
def test_decode_times(pts: list[int]) -> None:
    dts = decode_times(np.array(pts))
    assert (np.diff(dts) > 0).all()
    assert (dts <= np.array(pts)).all()
