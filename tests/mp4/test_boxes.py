"""Boxes that lie about their sizes, and any bytes at all."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamvid.mp4.boxes import MIRRORED, ROTATIONS, display_matrix, find_box, iter_boxes, rotation_of_matrix
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
def test_boxes_with_wrong_sizes_raise_nothing_but_value_errors(data: bytes) -> None:
    only_value_error(data)


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_value_errors(data: bytes) -> None:
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


def test_the_first_box_of_a_type_is_found() -> None:
    data = box(b"moov", b"".join(box(b"trak", box(b"tkhd", text)) for text in (b"one", b"two")))
    found = find_box(data, b"tkhd")
    assert found is not None
    assert data[slice(*found)] == b"one"


@pytest.mark.parametrize("rotation", ROTATIONS)
def test_a_rotation_is_read_back(rotation: int) -> None:
    a, b, _, c, d, _, x, y, _ = struct.unpack(">9i", display_matrix(rotation, width=64, height=48))
    assert rotation_of_matrix(a, b, c, d) == rotation
    assert rotation_of_matrix(3 * a, 0.5 * b, 3 * c, 0.5 * d) == rotation, "the scale is left out of account"
    assert rotation_of_matrix(a + 500, b - 500, c + 500, d + 500) == rotation, "half a degree is"
    # The picture's corners are those of a picture that begins at 0, 0.
    corners = [(a * u + c * v + x, b * u + d * v + y) for u in (0, 64) for v in (0, 48)]
    assert [min(column) for column in zip(*corners, strict=True)] == [0, 0]


def test_the_matrices_of_phones_and_editors() -> None:
    """x' = a·x + c·y, y' = b·x + d·y, y downwards (ISO/IEC 14496-12, 6.2.2)."""
    assert rotation_of_matrix(0, 1, -1, 0) == 90
    assert rotation_of_matrix(0, 1, 1, 0) == 270 + MIRRORED, "a transpose: mirrored, then turned left"
    assert rotation_of_matrix(0, -1, -1, 0) == 90 + MIRRORED
    assert rotation_of_matrix(-1, 0, 0, 1) == MIRRORED
    assert rotation_of_matrix(1, 0, 0, -1) == 180 + MIRRORED


@pytest.mark.parametrize("matrix", [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (-1, 0, -5, 0)])
def test_matrices_that_leave_nothing_of_a_picture_are_ignored(matrix: tuple[int, int, int, int]) -> None:
    assert rotation_of_matrix(*matrix) == 0


@pytest.mark.parametrize(
    "matrix", [(1, 1, -1, 1), (1, 0.02, -0.02, 1), (1, 0, 1, 1), (1, 1, 1, 1), (-(2**31), 2**31 - 1, 7, -9)]
)
def test_other_matrices_are_no_rotation(matrix: tuple[float, float, float, float]) -> None:
    assert rotation_of_matrix(*matrix) is None
