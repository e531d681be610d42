"""Which clips are of one kind, and how kinds are numbered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamvid as sv
from streamvid.bitstream.annexb import parameter_sets
from streamvid.dataset.clip_table import Categories
from streamvid.dataset.string_column import BinaryColumn
from streamvid.packing.options import PackOptions
from streamvid.plan import bucket_key
from streamvid.plan.bucket_key import bucket_keys
from tests.support.packed import pack_recipes
from tools.clips import Recipe

SIZES = ((64, 64), (96, 64), (64, 96), (48, 80), (1920, 1080))
CODECS = ("h264", "hevc", "vp9")
FORMATS = ("yuv420p", "yuv420p10le")
SETS = (b"a", b"b", b"a longer one")


def avcc(sets: bytes, bit_rate: int, *, name: bytes = b"avcC") -> bytes:
    """A sample description with one parameter set, and a bit rate behind it."""
    body = bytes([1, 77, 0, 30, 0xFF, 0xE1]) + len(sets).to_bytes(2, "big") + sets + b"\0"
    box = (len(body) + 8).to_bytes(4, "big") + name + body
    return b"\0" * 102 + box + b"\0\0\0\x14btrt" + bit_rate.to_bytes(12, "big")


@dataclass(frozen=True)
class Rows:
    """Of a `ClipTable`, what kinds are made of."""

    width: Any
    height: Any
    codec: Categories
    pix_fmt: Categories
    stsd_id: Any
    stsds: BinaryColumn

    def __len__(self) -> int:
        return len(self.width)


def binary_column(values: Sequence[bytes]) -> BinaryColumn:
    return BinaryColumn(pa.array(values, type=pa.large_binary()))


def rows_of(clips: list[tuple[int, int, int, int]]) -> Any:
    """Rows of clips given by numbers of size, codec, format and parameter sets, a sample description for each."""
    sizes = np.array([SIZES[size] for size, _, _, _ in clips], dtype=np.int32).reshape(-1, 2)
    categories = [np.array([clip[part] for clip in clips], dtype=np.int32) for part in (1, 2)]
    return Rows(
        sizes[:, 0], sizes[:, 1], Categories(categories[0], CODECS), Categories(categories[1], FORMATS),
        np.arange(len(clips), dtype=np.int32), binary_column([avcc(SETS[clip[3]], n) for n, clip in enumerate(clips)]),
    )  # fmt: skip


def key(clip: tuple[int, int, int, int]) -> tuple[Any, ...]:
    """Size by area, then width, then codec, format and sets."""
    size, codec, fmt, sets = clip
    width, height = SIZES[size]
    return width * height, width, CODECS[codec], FORMATS[fmt], parameter_sets("h264", avcc(SETS[sets], 0)).annex_b


any_clips = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=60
)


@given(any_clips, st.data())
def test_kinds_are_in_an_order_that_no_other_clip_changes(
    clips: list[tuple[int, int, int, int]], data: st.DataObject
) -> None:
    kinds = bucket_keys(rows_of(clips))
    order = sorted({key(clip) for clip in clips})
    assert kinds.tolist() == [order.index(key(clip)) for clip in clips]
    # Of the first clips alone, and of any: other numbers, in the same order.
    upto = data.draw(st.integers(1, len(clips)))
    first = bucket_keys(rows_of(clips[:upto]))
    assert np.unique(kinds[:upto], return_inverse=True)[1].tolist() == first.tolist()
    some = np.array(sorted(data.draw(st.sets(st.integers(0, len(clips) - 1), min_size=1))))
    of_some = bucket_keys(rows_of(clips), some)
    assert np.unique(kinds[some], return_inverse=True)[1].tolist() == of_some[some].tolist()
    assert len(of_some) == len(clips)
    assert not of_some[np.setdiff1d(np.arange(len(clips)), some)].any()


def test_no_clips_have_no_kinds() -> None:
    assert bucket_keys(rows_of([])).shape == (0,)


@pytest.mark.parametrize(
    "stsd",
    [b"", b"avcC", b"\0" * 16, b"\0" * 20 + b"avcC", b"\xff" * 8 + b"avcC\1", b"\0\0\0\x09hvcC\1", b"\0\0\0\0avcC" * 3],
)
def test_a_damaged_sample_description_is_a_kind_too(stsd: bytes) -> None:
    rows = rows_of([(0, 0, 0, 0), (0, 0, 0, 0), (1, 0, 0, 0)])
    rows = replace(rows, stsds=binary_column([stsd, *rows.stsds[1:]]))
    assert bucket_keys(rows).tolist() == [0, 1, 2]


def test_more_kinds_than_16_bits() -> None:
    count = (1 << 16) + 1
    sides = np.arange(1, count + 1, dtype=np.int32)
    same = Categories(np.zeros(count, np.int32), ("h264",))
    ids = np.zeros(count, np.int32)
    for rows, dtype in ((count - 1, np.uint16), (count, np.uint32)):
        few = Categories(same.codes[:rows], same.names)
        clips: Any = Rows(sides[:rows], sides[:rows], few, few, ids[:rows], binary_column([b""]))
        kinds = bucket_keys(clips)
        assert kinds.dtype == dtype
        assert kinds.tolist() == list(range(rows))


def test_of_clips_as_they_are_packed(tmp_path: Path) -> None:
    """Muxers write the bit rate into the sample description, which tells nothing of what decodes together."""
    recipes = [
        Recipe(width=64, height=64, frames=10, b_frames=0),
        Recipe(width=64, height=64, frames=10, b_frames=2),
        Recipe(width=64, height=64, frames=10, codec="hevc"),
        Recipe(width=96, height=64, frames=10),
    ]
    videos = {
        f"{number}_{copy}": replace(recipe, seed=copy, frames=recipe.frames + 7 * copy)
        for number, recipe in enumerate(recipes)
        for copy in range(3)
    }
    clips = sv.Dataset.open(pack_recipes(videos, tmp_path, options=PackOptions("any"))).clips
    assert len(clips.stsds) > len(recipes)
    kinds = bucket_keys(clips)
    made = [int(clips.key[row].split("_")[0]) for row in range(len(clips))]
    # "h264" comes before "hevc"; which of two parameter sets is first is of no matter.
    assert {(a, b) for a, b in zip(made, kinds.tolist(), strict=True)} in (
        {(0, 0), (1, 1), (2, 2), (3, 3)},
        {(0, 1), (1, 0), (2, 2), (3, 3)},
    )


def test_sample_descriptions_that_differ_in_the_bit_rate_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To parse one for each of ten million clips takes a minute and a half on every rank."""
    parsed = []
    parse = bucket_key._configuration
    monkeypatch.setattr(bucket_key, "_configuration", lambda stsd: (parsed.append(stsd), parse(stsd))[1])
    monkeypatch.setattr(bucket_key, "_BLOCK", 64)
    clips = [(n % 2, 0, 0, n % 3) for n in range(256)]
    keys = bucket_keys(rows_of(clips))
    assert keys.tolist() == [sorted({key(clip) for clip in clips}).index(key(clip)) for clip in clips]
    assert len(parsed) == 3 * 4
