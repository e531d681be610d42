"""Slices: the packets that frames need, where their bytes lie, and that they decode to the right frames."""

from __future__ import annotations

import io
import math
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import streamvid as sv
from streamvid.color.tags import RGB
from streamvid.decode.cpu import decode_with_pyav
from streamvid.errors import VideoError
from streamvid.mp4.boxes import full_box
from streamvid.mp4.sample_entry import sample_description, visual_sample_description
from streamvid.video.frame_index import DISPOSABLE, HIDDEN, LEADING, RANDOM_ACCESS, FrameIndex
from streamvid.video.packet_selection import (
    EncodedSlice,
    byte_ranges,
    byte_ranges_of_each,
    extract_each,
    extract_packets,
    select_each,
    select_packets,
)
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from tests.support.clips import write
from tests.support.encoder_process import EncoderProcess
from tests.support.packet_selection_cases import cases, make, plainly, random_recipe
from tests.support.reference import sequential, slice_of, to_rgb
from tools.clips import Recipe, read_frame_number


@st.composite
def indexes(draw: st.DrawFn) -> FrameIndex:
    """The packets of a clip with any GOPs: open and closed, with and without a random access point at the start."""
    flags: list[int] = []
    pts: list[int] = []
    clock = draw(st.integers(0, 20))
    for number in range(draw(st.integers(1, 5))):
        starts = number > 0 or draw(st.booleans())
        leading = draw(st.integers(0, 3)) if starts else 0
        trailing = draw(st.integers(0 if starts else 1, 6))
        disposable = st.sampled_from([0, DISPOSABLE])
        # Those of the first random access point have nothing to be decoded from, unless something comes before it.
        lost = HIDDEN if not flags else 0
        if starts:
            flags.append(RANDOM_ACCESS | draw(st.sampled_from([0, 0, 0, HIDDEN])))
            pts.append(clock + leading)
        for place in draw(st.permutations(range(leading))):
            flags.append(LEADING | draw(disposable) | lost)
            pts.append(clock + place)
        clock += leading + starts
        for place in draw(st.permutations(range(trailing))):
            flags.append(draw(disposable) | draw(st.sampled_from([0, 0, 0, HIDDEN])))
            pts.append(clock + place)
        clock += trailing
    if all(flag & HIDDEN for flag in flags):
        flags.append(0)
        pts.append(clock)
    count = len(flags)
    sizes = np.array(draw(st.lists(st.integers(1, 90), min_size=count, max_size=count)))
    gaps = np.array(draw(st.lists(st.sampled_from([0, 0, 0, 1, 40]), min_size=count, max_size=count)))
    offsets = np.cumsum(np.concatenate([[100], sizes[:-1]]) + gaps)
    if draw(st.booleans()):  # some other muxer's order
        order = np.array(draw(st.permutations(range(count))))
        starts_at = np.cumsum(np.concatenate([[7], sizes[order][:-1]]))
        offsets = np.empty(count, dtype=np.int64)
        offsets[order] = starts_at
    return FrameIndex(np.array(pts), offsets, sizes, np.array(flags))


@st.composite
def indexes_and_frames(draw: st.DrawFn) -> tuple[FrameIndex, list[int]]:
    index = draw(indexes())
    return index, sorted(draw(st.sets(st.integers(0, len(index.visible) - 1), min_size=1)))


def needed(index: FrameIndex, frame: int) -> set[int]:
    """What one frame needs: docs/format.md, "To decode frame n", word by word."""
    flags = index.flags.tolist()
    visible = sorted((n for n in range(len(flags)) if not flags[n] & HIDDEN), key=lambda n: index.pts[n])
    packet = visible[frame]
    starts = [n for n in range(packet + 1) if flags[n] & RANDOM_ACCESS]
    if flags[packet] & LEADING:
        starts = starts[:-1]
    start = starts[-1] if starts else 0
    fed = set()
    follows_start = True
    for n in range(start, packet + 1):
        if n > start and follows_start and flags[n] & LEADING and n != packet:
            continue
        follows_start = n == start
        if n == packet or not flags[n] & DISPOSABLE:
            fed.add(n)
    return fed


def chosen(index: FrameIndex, offsets: Any) -> list[int]:
    return [index.offset.tolist().index(o) for o in offsets]


@settings(max_examples=settings.default.max_examples * 3)
@given(indexes_and_frames())
def test_the_packets_are_those_that_the_format_names(case: tuple[FrameIndex, list[int]]) -> None:
    index, frames = case
    part = select_packets(index, np.array(frames))
    got = chosen(index, part.offsets)
    assert got == sorted(set(got)) == part.numbers.tolist(), "in decode order"
    np.testing.assert_array_equal(part.sizes, index.size[got])
    wanted = set().union(*(needed(index, frame) for frame in frames))
    assert wanted <= set(got)
    # Of a GOP whose leading pictures are wanted, all that others may refer to are taken; nothing else is.
    gop = np.cumsum(index.flags & RANDOM_ACCESS)
    open_gops = {gop[n] for n in index.visible[frames] if index.flags[n] & LEADING}
    for extra in set(got) - wanted:
        assert index.flags[extra] & LEADING
        assert gop[extra] in open_gops
    if len(frames) == 1:
        assert set(got) == wanted


@given(indexes_and_frames())
def test_ranks_are_the_presentation_order(case: tuple[FrameIndex, list[int]]) -> None:
    index, frames = case
    part = select_packets(index, np.array(frames))
    got = chosen(index, part.offsets)
    shown = sorted(got, key=lambda n: (index.pts[n], n))
    assert [shown.index(n) for n in got] == part.display_order.tolist()
    assert [shown.index(int(n)) for n in index.visible[frames]] == part.frames.tolist()


@given(indexes_and_frames(), st.integers(0, 200))
def test_ranges_and_gather_give_the_packets_bytes(case: tuple[FrameIndex, list[int]], gap: int) -> None:
    index, frames = case
    data = np.random.default_rng(1).integers(0, 256, int((index.offset + index.size).max()) + 5, dtype=np.uint8)
    part = select_packets(index, np.array(frames))
    spans = byte_ranges(part, gap=gap)
    assert spans.dtype == np.int64
    got = extract_packets(part, spans, [data[start:end] for start, end in spans.tolist()])
    wanted = [data[o : o + s] for o, s in zip(part.offsets.tolist(), part.sizes.tolist(), strict=True)]
    np.testing.assert_array_equal(got, np.concatenate(wanted))
    assert got.dtype == np.uint8
    # No more bytes than the packets and the gaps between them that are small enough to be read through.
    assert np.all(spans[:, 0] < spans[:, 1])
    assert np.all(spans[1:, 0] - spans[:-1, 1] > gap)
    touched = np.zeros(len(data), dtype=bool)
    for packet in range(len(part.offsets)):
        touched[part.offsets[packet] : part.offsets[packet] + part.sizes[packet]] = True
    for start, end in spans.tolist():
        assert touched[start]
        assert touched[end - 1]
        runs = np.diff(np.flatnonzero(touched[start:end]))
        assert runs.max(initial=0) <= gap + 1


@st.composite
def any_packets_and_frames(draw: st.DrawFn) -> tuple[FrameIndex, list[int]]:
    """Of packets with any flags, times and places, as a hostile index may have them."""
    row = st.tuples(st.integers(-2, 5), st.integers(0, 60), st.integers(1, 9), st.integers(0, 15), st.integers(-1, 3))
    pts, offset, size, flags, crcs = np.array(draw(st.lists(row, min_size=1, max_size=9))).T
    flags[draw(st.integers(0, len(flags) - 1))] &= ~HIDDEN
    base = draw(st.sampled_from([0, 2**31 - 30, 2**62]))
    index = FrameIndex(pts * draw(st.sampled_from([1, 2**50])), offset + base, size, flags, crcs)
    return index, sorted(draw(st.sets(st.integers(0, len(index.visible) - 1), min_size=1)))


@settings(max_examples=settings.default.max_examples * 3)
@given(
    st.lists(indexes_and_frames() | any_packets_and_frames(), max_size=4),
    st.sampled_from([0, 1, 30, 10**9]),
    st.sampled_from([0, 0.3, math.inf]),
)
def test_clips_together_are_as_each_alone(cases: list[tuple[FrameIndex, list[int]]], gap: int, waste: float) -> None:
    cases += cases[:1]  # one comes twice
    parts = select_each([index for index, _ in cases], [np.array(frames) for _, frames in cases])
    every = byte_ranges_of_each(parts, gap=gap, waste=waste)

    def stored(clip: int, start: int, end: int) -> npt.NDArray[np.uint8]:
        return (np.arange(start, end) % 251 + clip).astype(np.uint8)

    blocks = [[stored(n, start, end) for start, end in spans.tolist()] for n, spans in enumerate(every)]
    packets = extract_each(parts, every, blocks)
    for n, (case, part, spans, got) in enumerate(zip(cases, parts, every, packets, strict=True)):
        for name, column in plainly(*case).items():
            np.testing.assert_array_equal(getattr(part, name), column, name)
            assert getattr(part, name).dtype == np.int64
        np.testing.assert_array_equal(spans, byte_ranges(part, gap=gap, waste=waste))
        places = zip(part.offsets.tolist(), part.sizes.tolist(), strict=True)
        np.testing.assert_array_equal(got, np.concatenate([stored(n, start, start + size) for start, size in places]))


@settings(max_examples=settings.default.max_examples * 3)
@given(indexes_and_frames(), st.sampled_from([0, 1, 30, 10**9]), st.floats(0, 3))
def test_ranges_within_a_budget(case: tuple[FrameIndex, list[int]], gap: int, waste: float) -> None:
    index, frames = case
    part = select_packets(index, np.array(frames))
    spans = byte_ranges(part, gap=gap, waste=waste)
    freely = byte_ranges(part, gap=gap)
    # Every packet lies in one of them, and those that are never split are those of the budget without end.
    block = np.searchsorted(spans[:, 0], part.offsets, side="right") - 1
    assert (part.offsets >= spans[block, 0]).all()
    assert (part.offsets + part.sizes <= spans[block, 1]).all()
    assert (spans[1:, 0] > spans[:-1, 1]).all()
    assert set(freely[:, 0].tolist()) <= set(spans[:, 0].tolist())

    order = np.argsort(part.offsets)
    ends = (part.offsets + part.sizes)[order]
    between = part.offsets[order][1:] - ends[:-1]
    one_gop = np.diff(part.gops[order]) == 0
    reach = (between > 0) & (between <= gap)
    inside, apart = between[reach & one_gop], np.sort(between[reach & ~one_gop])
    read, needed = int((spans[:, 1] - spans[:, 0]).sum()), int(part.sizes.sum())
    assert read - needed <= max(waste * needed, int(inside.sum()))
    # No other choice makes fewer reads of the same budget.
    affordable = int((np.cumsum(apart) <= waste * needed - inside.sum()).sum())
    assert len(spans) == len(freely) + len(apart) - affordable
    if gap == 10**9 and (np.diff(part.offsets) > 0).all():
        assert len(spans) <= len(set(part.gops.tolist()))


def test_groups_of_pictures_are_those_of_the_clip() -> None:
    index = FrameIndex(np.arange(7), np.arange(7) * 10, np.full(7, 10), np.array([0, 1, 0, 1, 2, 0, 1]))
    assert select_packets(index, np.array([0, 2, 5, 6])).gops.tolist() == [0, 1, 1, 2, 2, 3]
    part = select_packets(index, np.array([2, 5]))
    # Packets at 10, 20, 30 and 50: what lies within the second group is read through, whatever the budget.
    assert byte_ranges(part, gap=100, waste=0).tolist() == [[10, 60]]
    assert byte_ranges(part, gap=9, waste=0).tolist() == [[10, 40], [50, 60]]


@pytest.mark.parametrize("frames", [[], [1, 1], [2, 1], [-1], [99], [0, 99], [-1, 2]])
def test_frames_that_cannot_be(frames: list[int]) -> None:
    index = FrameIndex(np.arange(5), np.arange(5) * 10, np.full(5, 10), np.array([1, 0, 0, 0, 0]))
    with pytest.raises((ValueError, IndexError)):
        select_packets(index, np.array(frames, dtype=np.int64))


@given(indexes_and_frames())
def test_the_mp4_holds_the_packets_in_order(case: tuple[FrameIndex, list[int]]) -> None:
    index, frames = case
    part = select_packets(index, np.array(frames))
    data = np.random.default_rng(2).integers(0, 256, int(part.sizes.sum()), dtype=np.uint8)
    vpcc = full_box(b"vpcC", bytes([0, 10, 0x82, 2, 2, 2, 0, 0]), version=1)
    stsd = visual_sample_description(b"vp08", vpcc, width=64, height=48)
    encoded = EncodedSlice(
        name="a", codec="vp8", stsd=stsd, width=64, height=48, color=RGB, data=data,
        sizes=part.sizes, display_order=part.display_order, frames=part.frames,
    )  # fmt: skip
    written = encoded.to_mp4()
    assert written.dtype == np.uint8
    with av.open(io.BytesIO(written.tobytes()), "r") as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "vp8"
        packets: list[Any] = [p for p in container.demux(stream) if p.size]
        assert b"".join(bytes(p) for p in packets) == data.tobytes()
        assert [p.size for p in packets] == part.sizes.tolist()
        assert np.argsort(np.argsort([p.pts for p in packets])).tolist() == part.display_order.tolist()
        times = [p.dts for p in packets]
        assert times == sorted(set(times))
        assert all(p.pts >= p.dts for p in packets)
        assert stream.frames == len(packets)
    assert sample_description(written.tobytes()) == stsd


@pytest.fixture(scope="module")
def encoder() -> Iterator[EncoderProcess]:
    with EncoderProcess() as process:
        yield process


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """What an encoder can be asked for."""
    return random_recipe(lambda values: draw(st.sampled_from(values)))


@settings(
    max_examples=settings.default.max_examples // 2,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
    print_blob=True,
)
@given(recipes(), st.integers(0, 2**32 - 1))
@example(Recipe(codec="hevc", width=96, height=64, frames=21, gop=4, b_frames=2, open_gop=True, jitter=80, seed=13), 0)
@example(Recipe(codec="mpeg4", width=96, height=64, frames=37, gop=2, b_frames=1, open_gop=True, jitter=0), 0)
def test_frames_of_any_encoder_are_those_of_the_sequential_decode(
    encoder: EncoderProcess, recipe: Recipe, seed: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        case = make(recipe, Path(folder), seed, encoder)
        assume(case is not None)
        assert case is not None
        frames = sequential(case.source, full_range=case.clip.color_range == "pc", edits=False)
        assert len(case.clip.index.visible) == len(frames)
        for wanted in case.wanted:
            for got, n in zip(decode_with_pyav(slice_of(case.clip, wanted)), wanted.tolist(), strict=True):
                assert np.array_equal(got, frames[n]), f"frame {n} of {wanted.tolist()} in {recipe}"


def test_cases_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    """The GPU's test takes its clips from there."""
    codecs = ("h264", "vp9", "mjpeg")
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made.append(list(cases(5, 3, tmp_path / name, codecs=codecs)))
    assert [case.recipe for case in made[0]] == [case.recipe for case in made[1]]
    assert len({case.recipe for case in made[0]}) == 3
    for one, other in zip(*made, strict=True):
        assert [w.tolist() for w in one.wanted] == [w.tolist() for w in other.wanted]


@pytest.fixture(scope="module")
def plain_clip(tmp_path_factory: pytest.TempPathFactory) -> StoredClip:
    """I, P and two B in a row that nothing refers to, one reference picture each way."""
    folder = tmp_path_factory.mktemp("plain")
    params = (("ref", "1"), ("b-pyramid", "none"), ("weightp", "0"))
    recipe = Recipe(width=96, height=64, frames=36, gop=18, b_frames=2, params=params, crf=10)
    return store_clip(write(recipe, folder / "a.mp4"), folder)


def test_a_late_frame_needs_few_packets(plain_clip: StoredClip) -> None:
    index = plain_clip.index
    frame = 16
    part = select_packets(index, np.array([frame]))
    before = int(index.visible[frame]) + 1
    assert len(part.sizes) <= before // 2
    # Sparse frames of several GOPs cost less than what lies between them.
    assert len(select_packets(index, np.array([0, 18])).sizes) == 2


@pytest.mark.parametrize("frame", [0, 1, 3, 7, 14, 15, 16, 35])
def test_no_packet_of_a_slice_can_be_left_out(plain_clip: StoredClip, frame: int) -> None:
    """With one reference each way and no B-pyramid a slice is a chain, and without any of it the frame is another.

    With a pyramid or more references that does not hold: a picture that may be referred to need not be.
    """
    whole = slice_of(plain_clip, [frame])
    right = decode_with_pyav(whole)[0]
    assert read_frame_number(right) == frame
    for dropped in range(len(whole.sizes)):
        if whole.display_order[dropped] == whole.frames[0]:
            continue  # the frame itself
        with_without = _without(whole, dropped)
        try:
            got = decode_with_pyav(with_without)[0]
        except VideoError:
            continue
        assert not np.array_equal(got, right), f"packet {dropped} of {len(whole.sizes)} is not needed"


def _without(part: EncodedSlice, dropped: int) -> EncodedSlice:
    ends = np.cumsum(part.sizes)
    pieces = [
        part.data[end - size : end] for n, (end, size) in enumerate(zip(ends, part.sizes, strict=True)) if n != dropped
    ]
    keep = np.arange(len(part.sizes)) != dropped
    return replace(
        part,
        data=np.concatenate(pieces) if pieces else part.data[:0],
        sizes=part.sizes[keep],
        display_order=part.display_order[keep],
    )


@pytest.mark.parametrize("container", ["ts", "mkv"])
def test_a_clip_that_starts_at_a_recovery_point(container: Any, tmp_path: Path) -> None:
    """A recording of a stream with intra refresh: no key frame at all, the picture is whole only after a while."""
    params = (("intra-refresh", "1"),)
    recipe = Recipe(container=container, height=192, frames=72, gop=24, b_frames=0, params=params, from_key=1)
    source = write(recipe, tmp_path / f"a.{container}")
    clip = store_clip(source, tmp_path)
    frames = sequential(source, full_range=False)
    assert len(clip.index.visible) == len(frames)
    for n, frame in enumerate(frames):
        np.testing.assert_array_equal(decode_with_pyav(slice_of(clip, [n]))[0], frame)
        assert read_frame_number(frame) == 72 - len(frames) + n


def test_the_public_function(plain_clip: StoredClip) -> None:
    """Bytes in, an MP4 and positions out: any decoder finds the frames there."""
    data = plain_clip.mp4.read_bytes()
    asked = []

    def read(start: int, end: int) -> bytes:
        asked.append((start, end))
        return data[start:end]

    frames = [3, 16, 17, 30]
    small, positions = sv.slice(plain_clip.index, frames, read, stsd=plain_clip.stsd, gap=0)
    assert len(asked) > 2
    assert sum(end - start for start, end in asked) < len(small) < len(data)
    with av.open(io.BytesIO(small.tobytes())) as container:
        stream = container.streams.video[0]
        assert (stream.width, stream.height) == (96, 64)
        shown = [to_rgb(frame, full_range=False) for frame in container.decode(stream)]
    whole = sequential(plain_clip.mp4, full_range=False)
    for position, frame in zip(positions.tolist(), frames, strict=True):
        np.testing.assert_array_equal(shown[position], whole[frame])
    asked.clear()
    again, _ = sv.slice(plain_clip.index, np.array(frames), read, stsd=plain_clip.stsd, gap=1 << 20)
    assert len(asked) == 1
    np.testing.assert_array_equal(again, small)


def test_the_public_function_with_what_cannot_be(plain_clip: StoredClip) -> None:
    index, stsd = plain_clip.index, plain_clip.stsd
    with pytest.raises(IndexError, match="36 frames"):
        sv.slice(index, [36], lambda start, end: bytes(end - start), stsd=stsd)
    with pytest.raises(ValueError, match="got 3 bytes"):
        sv.slice(index, [0], lambda start, end: b"abc", stsd=stsd)
    with pytest.raises(ValueError, match="too short"):
        sv.slice(index, [0], lambda start, end: bytes(end - start), stsd=stsd[:50])
    with pytest.raises(ValueError, match=r"frames must be a list of whole numbers; it is \[0.5\]"):
        sv.slice(index, [0.5], lambda start, end: bytes(end - start), stsd=stsd)


@pytest.mark.parametrize("value", [None, "x", [1], -1, object()])
@pytest.mark.parametrize("name", ["index", "frames", "read", "stsd", "gap", "waste"])
def test_arguments_of_another_type(plain_clip: StoredClip, name: str, value: object) -> None:
    if name == "frames" and value == [1]:
        return
    given: Any = {"index": plain_clip.index, "frames": [0], "read": lambda *_: None, "stsd": plain_clip.stsd}
    with pytest.raises(ValueError, match=f"^{name} must be"):
        sv.slice(**{**given, name: value})
    with pytest.raises(sv.InputError, match="what read returns must be bytes"):
        sv.slice(**given)
