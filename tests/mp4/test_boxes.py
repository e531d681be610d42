"""Boxes that lie about their sizes, and any bytes at all."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamvid.mp4.boxes import display_matrix, iter_boxes, rotation_of_matrix
from streamvid.mp4.sample_entry import codec_configuration, sample_description

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
    for kind, start, end in iter_boxes(data, 0, len(data)):
        assert len(kind) == 4
        assert 8 <= start <= end <= len(data)
    try:
        stsd = sample_description(data)
    except ValueError:
        pass
    else:
        assert stsd[4:8] == b"stsd"
        assert stsd in data
    for name in (b"avcC", b"hvcC"):
        with contextlib.suppress(ValueError):
            assert len(codec_configuration(data, name)) >= 7


@settings(max_examples=settings.default.max_examples * 3)
@given(nearly_mp4())
@example(struct.pack(">I4sQ", 1, b"moov", 2**63))
@example(struct.pack(">I4sQ", 1, b"moov", 3))
@example(struct.pack(">I4s", 1, b"moov"))
@example(box(b"moov", struct.pack(">I4s", 1, b"stsd")))
def test_boxes_that_lie(data: bytes) -> None:
    only_value_error(data)


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    only_value_error(data)


def test_boxes_of_every_size_form() -> None:
    data = (
        box(b"free", b"abc")
        + struct.pack(">I4sQ", 1, b"wide", 20)
        + b"wxyz"
        + struct.pack(">I4s", 0, b"last")
        + b"rest"
    )
    assert [(k, data[s:e]) for k, s, e in iter_boxes(data, 0, len(data))] == [
        (b"free", b"abc"), (b"wide", b"wxyz"), (b"last", b"rest")
    ]  # fmt: skip


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_a_rotation_is_read_back(degrees: int) -> None:
    assert rotation_of_matrix(display_matrix(degrees, width=64, height=48)) == degrees


def test_other_matrices_are_no_rotation() -> None:
    matrix = display_matrix()
    for at, value in ((0, -(1 << 16)), (0, 1000), (8, 1), (32, 1 << 16)):
        changed = bytearray(matrix)
        struct.pack_into(">i", changed, at, value)
        assert rotation_of_matrix(bytes(changed)) is None
