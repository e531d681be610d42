"""The MP4s written here, and reading boxes out of anything."""

from __future__ import annotations

import contextlib
import io
import struct
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamvid.mp4 import boxes
from tools.clips import Recipe, look, write

VPCC = boxes.full_box(b"vpcC", bytes([0, 10, 0x82, 2, 2, 2, 0, 0]), version=1)
STSD = boxes.visual_sample_description(b"vp08", VPCC, width=64, height=48)
KINDS = [b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd", b"mdat", b"edts", b"elst", b"mvhd", b"avcC", b"hvcC"]


def box(kind: bytes, payload: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(payload), kind) + payload


@st.composite
def nearly_mp4(draw: st.DrawFn, depth: int = 6) -> bytes:
    """Boxes in boxes, some of them with sizes that lie."""
    parts = []
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(KINDS))
        payload = draw(nearly_mp4(depth - 1)) if depth and draw(st.booleans()) else draw(st.binary(max_size=40))
        size = draw(st.just(8 + len(payload)) | st.integers(0, 40) | st.just(2**32 - 1))
        parts.append(struct.pack(">I4s", size, kind) + payload)
    return b"".join(parts)


def only_value_error(data: bytes) -> None:
    for kind, start, end in boxes.boxes(data, 0, len(data)):
        assert len(kind) == 4
        assert 8 <= start <= end <= len(data)
    try:
        stsd = boxes.sample_description(data)
    except ValueError:
        pass
    else:
        assert stsd[4:8] == b"stsd"
        assert stsd in data
    for name in (b"avcC", b"hvcC"):
        with contextlib.suppress(ValueError):
            assert len(boxes.codec_configuration(data, name)) >= 7


@settings(max_examples=400, deadline=None)
@given(nearly_mp4())
@example(struct.pack(">I4sQ", 1, b"moov", 2**63))
@example(struct.pack(">I4sQ", 1, b"moov", 3))
@example(struct.pack(">I4s", 1, b"moov"))
@example(box(b"moov", struct.pack(">I4s", 1, b"stsd")))
def test_boxes_that_lie(data: bytes) -> None:
    only_value_error(data)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    only_value_error(data)


def test_the_end_of_an_edit_list(tmp_path: Path) -> None:
    path = write(Recipe(width=96, height=64, frames=20, trim=4), tmp_path / "a.mp4")
    data = bytearray(path.read_bytes())
    assert boxes.limit_edit(data, 0.2)
    assert len(data) == path.stat().st_size
    path.write_bytes(data)
    assert look(path).numbers == [4, 5, 6, 7, 8, 9]
    assert not boxes.limit_edit(bytearray(boxes.header(STSD, np.array([1]), width=64, height=48)), 1.0)


def test_boxes_of_every_size_form() -> None:
    data = (
        box(b"free", b"abc")
        + struct.pack(">I4sQ", 1, b"wide", 20)
        + b"wxyz"
        + struct.pack(">I4s", 0, b"last")
        + b"rest"
    )
    assert [(k, data[s:e]) for k, s, e in boxes.boxes(data, 0, len(data))] == [
        (b"free", b"abc"), (b"wide", b"wxyz"), (b"last", b"rest")
    ]  # fmt: skip


def test_more_than_one_sample_description_is_refused() -> None:
    two = boxes.full_box(b"stsd", struct.pack(">I", 2), bytes(100))
    data = box(b"moov", box(b"trak", box(b"mdia", box(b"minf", box(b"stbl", two)))))
    with pytest.raises(ValueError, match="more than one"):
        boxes.sample_description(data)


def test_too_large_for_32_bits() -> None:
    with pytest.raises(ValueError, match="32-bit"):
        boxes.header(STSD, np.array([2**31, 2**31]), width=64, height=48)


@settings(max_examples=100, deadline=None)
@given(st.permutations(range(9)))
def test_composition_offsets(ranks: list[int]) -> None:
    offsets = boxes.composition_offsets(np.array(ranks))
    assert offsets.min() == 0
    shown = np.arange(9) + offsets
    assert np.argsort(shown, kind="stable").tolist() == np.argsort(ranks).tolist()
    assert np.all(np.diff(np.sort(shown)) == 1)


def test_no_packets() -> None:
    head = boxes.header(STSD, np.empty(0, dtype=np.int64), width=64, height=48)
    with av.open(io.BytesIO(head)) as container:
        context = container.streams.video[0].codec_context
        assert (context.name, context.width, context.height) == ("vp8", 64, 48)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 500), st.integers(1, 9000)), min_size=1, max_size=30), st.integers(1, 90000))
def test_what_ffmpeg_reads_of_it(packets: list[tuple[int, int]], timescale: int) -> None:
    sizes, steps = (np.array(column, dtype=np.int64) for column in zip(*packets, strict=True))
    head = boxes.header(STSD, sizes, width=64, height=48, steps=steps, timescale=timescale)
    data = np.random.default_rng(0).bytes(int(sizes.sum()))
    with av.open(io.BytesIO(head + data), "r") as container:
        stream = container.streams.video[0]
        got = [p for p in container.demux(stream) if p.size]
        assert [p.size for p in got] == sizes.tolist()
        assert b"".join(bytes(p) for p in got) == data
        assert [p.pos for p in got] == (len(head) + np.concatenate([[0], np.cumsum(sizes)[:-1]])).tolist()
        base = stream.time_base
        assert base is not None
        assert [(p.dts or 0) * base * timescale for p in got] == np.concatenate([[0], np.cumsum(steps)[:-1]]).tolist()
