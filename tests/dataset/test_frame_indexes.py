"""Frame indexes from a tar: the same that was written, or an error, whatever the bytes."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from streamvid.dataset.frame_indexes import parse_index
from streamvid.video.frame_index import FrameIndex

COLUMNS = ("pts", "offset", "size", "flags")
INDEX = FrameIndex(np.arange(3), np.arange(3), np.ones(3, dtype=np.int64), np.array([1, 0, 0]))
CLIPS: Any = SimpleNamespace(packets=np.array([3]), mp4_size=np.array([4]), frames=np.array([3]))


def parsed(data: bytes) -> FrameIndex:
    return parse_index(np.frombuffer(data, dtype=np.uint8), CLIPS, 0)


def test_an_index_is_read_as_it_was_written() -> None:
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(parsed(INDEX.to_npy()), name), getattr(INDEX, name))


@given(st.binary(max_size=300) | st.binary(min_size=96, max_size=96).map(lambda rows: INDEX.to_npy()[:128] + rows))
@example(b"")
@example(b"PK\3\4" + bytes(220))
@example(INDEX.to_npy()[:-1])
def test_any_bytes_are_an_index_of_the_clip_or_an_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        index = parsed(data)
        assert len(index) == len(index.visible) == 3
        assert index.pts.min() >= 0
        assert (index.offset + index.size <= 4).all()
