"""Byte ranges read in blocks, and merged."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamvid.video.read_buffer import BLOCK_BYTES, coalesce, read_blocks


@settings(suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=40),
    st.sampled_from([8, 64, BLOCK_BYTES]),
)
def test_ranges_are_read(rows: list[tuple[int, int]], block_bytes: int) -> None:
    gap, size = np.array(rows).T * (1 if block_bytes < BLOCK_BYTES else 20_000)
    offset = np.cumsum(gap + size) - size
    content = np.random.default_rng(0).bytes(int(offset[-1] + size[-1]))
    wanted = [content[o : o + s] for o, s in zip(offset, size, strict=True)]
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamvid.video.read_buffer.BLOCK_BYTES", block_bytes)
        path = Path(name) / "file"
        path.write_bytes(content)
        with path.open("rb", buffering=0) as file:
            got = [bytes(one) for block in read_blocks(file, offset, size) for one in block.ranges]
            assert got == wanted
            runs = b"".join(bytes(run) for block in read_blocks(file, offset, size) for run in block.runs)
            assert runs == b"".join(wanted)
            fewer, lengths = coalesce(offset, size)
            assert (lengths <= block_bytes).all()
            assert b"".join(content[o : o + s] for o, s in zip(fewer, lengths, strict=True)) == b"".join(wanted)
            with pytest.raises(EOFError):
                list(read_blocks(file, offset, size + 1))
