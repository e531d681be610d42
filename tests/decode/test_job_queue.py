"""Runs that wait for decoders: each is taken once, batches in order, and nobody waits for what nobody takes."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.bitstream.annexb import START_CODE, begins_anew, parameters
from streamvid.decode.cpu import ReusableCodecContext
from streamvid.decode.decode_job import GopJob, JobGroup, SessionKey, is_supported, session_key, split_at_idr
from streamvid.decode.job_queue import OPENING, SPARE, DecodeQueue
from streamvid.errors import VideoError
from streamvid.video.remux import store_clip
from tests.support.reference import slice_of
from tools.clips import Recipe, hard_recipes, write


def kind(number: int) -> SessionKey:
    return SessionKey("h264", 1280, 720 + 2 * number, 8, "")


def run(of: int, packets: int, batch: JobGroup) -> GopJob:
    part: Any = None
    return GopJob(part, None, [b""] * packets, True, list(range(packets)), {0: 0}, kind(of), 4, batch)


def runs(*shapes: tuple[int, int]) -> list[GopJob]:
    """A batch of runs of so many kinds and packets."""
    batch = JobGroup(len(shapes))
    return [run(of, packets, batch) for of, packets in shapes]


class Worker(threading.Thread):
    """Takes as an engine or a core does, and keeps at most so many kinds open."""

    def __init__(self, waiting: DecodeQueue, *, spare: bool = False, most: int = 2) -> None:
        super().__init__(daemon=True)
        self.waiting, self.spare, self.most = waiting, spare, most
        self.taken: list[GopJob] = []
        self.opened: list[SessionKey] = []
        self.start()

    def take(self) -> list[GopJob]:
        if self.spare:
            return self.waiting.spare()
        current = self.opened[-1] if self.opened else None
        taken = self.waiting.take(current=current, opened=self.opened, block=False)
        taken = taken or self.waiting.take(current=current, opened=self.opened, block=True)
        return [taken] if taken else []

    def run(self) -> None:
        while runs := self.take():
            assert len({(one.kind, one.batch) for one in runs}) == 1
            for taken in runs:
                if not self.spare:
                    if taken.kind in self.opened:
                        self.opened.remove(taken.kind)
                    elif len(self.opened) == self.most:
                        self.waiting.closed(self.opened.pop(0))
                    self.opened.append(taken.kind)
                time.sleep(len(taken.packets) * 1e-5)
                self.taken.append(taken)
                taken.batch.finished()


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 200)), max_size=12), max_size=5),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 3),
)
def test_every_run_is_taken_once(batches: list[list[tuple[int, int]]], engines: int, spare: int, most: int) -> None:
    waiting = DecodeQueue(engines=engines)
    workers = [Worker(waiting, most=most) for _ in range(engines)]
    workers += [Worker(waiting, spare=True) for _ in range(spare)]
    made = [runs(*shapes) for shapes in batches]
    for batch in made:
        waiting.put(batch)
    for batch in made:
        if batch:
            batch[0].batch.wait()
    waiting.end()
    for worker in workers:
        worker.join(10)
        assert not worker.is_alive()
    taken = [id(one) for worker in workers for one in worker.taken]
    assert sorted(taken) == sorted(id(one) for batch in made for one in batch)


def test_batches_come_in_order_and_the_longest_first() -> None:
    waiting = DecodeQueue(engines=1)
    first, second = runs((0, 3), (0, 9), (0, 5)), runs((0, 100))
    waiting.put(first)
    waiting.put(second)
    order = [waiting.take(current=kind(0), opened=[kind(0)], block=False) for _ in range(5)]
    assert order == [first[1], first[2], first[0], second[0], None]


def test_an_engine_goes_on_with_what_it_has_decoders_for() -> None:
    waiting = DecodeQueue(engines=2)
    mixed = runs((0, 5), (1, 5), (2, 5), (1, 5))
    waiting.put(mixed)
    taken = [waiting.take(current=kind(1), opened=[kind(0), kind(1)], block=False) for _ in range(4)]
    assert taken == [mixed[1], mixed[3], mixed[0], mixed[2]]


def test_a_second_decoder_is_opened_where_it_pays() -> None:
    waiting = DecodeQueue(engines=3)
    few = runs((0, OPENING // 2), (0, OPENING // 2))
    waiting.put(few)
    assert waiting.take(current=None, opened=[], block=False) is few[0]
    # Another engine holds it, and it is not worth a second decoder.
    assert waiting.take(current=None, opened=[], block=False) is None
    many = runs((0, 3 * OPENING), (0, 3 * OPENING))
    waiting.put(many)
    assert waiting.take(current=None, opened=[], block=False) is few[1]
    assert waiting.take(current=None, opened=[], block=False) in many


def test_what_nobody_takes_is_taken_in_the_end() -> None:
    """The one engine that has a decoder for it is busy."""
    waiting = DecodeQueue(engines=2)
    few = runs((0, 1), (0, 1))
    waiting.put(few)
    assert waiting.take(current=None, opened=[], block=True) is few[0]
    assert waiting.take(current=None, opened=[], block=True) is few[1]


def test_cores_leave_the_last_runs_to_the_engines() -> None:
    waiting = DecodeQueue(engines=4)
    waiting.put(runs(*((0, 40) for _ in range(20))))
    core = Worker(waiting, spare=True)
    deadline = time.monotonic() + 5
    # One more, and those that are left would keep the four engines busy for as long as `SPARE` such runs.
    kept = SPARE * 4 - 1
    while len(core.taken) < 20 - kept and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(core.taken) == 20 - kept
    waiting.end()
    left = [waiting.take(current=None, opened=[kind(0)], block=True) for _ in range(kept + 1)]
    assert None not in left[:kept]
    assert left[kept] is None


def test_a_run_is_tried_twice() -> None:
    waiting = DecodeQueue(engines=1)
    bad, good = runs((0, 1), (0, 2))
    waiting.put([bad, good])
    assert waiting.take(current=None, opened=[], block=False) is good
    assert waiting.take(current=None, opened=[kind(0)], block=False) is bad
    waiting.again(bad, VideoError("no"))
    again = waiting.take(current=kind(0), opened=[kind(0)], block=False)
    assert again is not None
    assert again.tried
    assert replace(again, tried=None).packets == bad.packets
    waiting.again(again, VideoError("again no"))
    good.batch.finished()
    with pytest.raises(VideoError, match="again no"):
        good.batch.wait()


def test_where_there_are_no_engines_nothing_is_tried_again() -> None:
    waiting = DecodeQueue(engines=0)
    (only,) = runs((0, 5))
    waiting.put([only])
    assert waiting.spare() == [only]
    waiting.again(only, VideoError("no"))
    with pytest.raises(VideoError, match="no"):
        only.batch.wait()


def test_a_batch_waits_for_all_even_if_one_fails() -> None:
    batch = JobGroup(2)
    seen = []

    class Event:
        def synchronize(self) -> None:
            seen.append("written")

    batch.failed(VideoError("no"))
    thread = threading.Thread(target=batch.finished, args=(Event(),))
    thread.start()
    with pytest.raises(VideoError, match="no"):
        batch.wait()
    thread.join()
    assert seen == ["written"]
    JobGroup(0).wait()


def test_slices_are_cut_where_they_begin_anew(tmp_path: Any) -> None:
    clip = store_clip(write(Recipe(frames=40, gop=10, b_frames=2), tmp_path / "source.mp4"), tmp_path)
    part = slice_of(clip, [3, 4, 19, 38])
    cuts = split_at_idr([part], [(None, 0)])
    sets = parameters(clip.codec, clip.stsd).sets
    assert len(cuts) == 3
    for piece in cuts:
        assert piece.anew
        assert piece.packets[0].startswith(sets)
        assert not any(begins_anew(packet, "h264") for packet in piece.packets[1:])
        assert len(piece.packets) == len(piece.ranks)
    assert sum(len(piece.packets) for piece in cuts) == len(part.sizes)
    assert [row for piece in cuts for row in sorted(piece.rows.values())] == [0, 1, 2, 3]
    assert {rank for piece in cuts for rank in piece.rows} == set(part.frames.tolist())
    torn = replace(part, data=np.zeros_like(part.data))
    with pytest.raises(VideoError, match="damaged"):
        split_at_idr([part, torn], [(None, 0), (None, 4)])


@pytest.mark.parametrize(
    ("recipe", "taken"),
    [
        (Recipe(frames=2), True),
        (Recipe(frames=2, codec="hevc", height=182), True),
        (Recipe(frames=2, codec="hevc", pix_fmt="yuv420p10le"), True),
        (Recipe(frames=2, codec="hevc", pix_fmt="yuv420p10le", height=182), False),
        (Recipe(frames=2, pix_fmt="yuv420p10le"), False),
        (Recipe(frames=2, codec="vp9"), False),
    ],
)
def test_what_is_taken(recipe: Recipe, taken: bool, tmp_path: Any) -> None:
    clip = store_clip(write(recipe, tmp_path / "source.mp4"), tmp_path)
    assert is_supported(clip.codec, clip.stsd, recipe.width, recipe.height) == taken
    if taken:
        found, _ = session_key(clip.codec, clip.stsd, recipe.width, recipe.height)
        assert found.frame_bytes == recipe.width * recipe.height * 3 // 2 * (2 if "10" in recipe.pix_fmt else 1)
    assert not is_supported(recipe.codec, clip.stsd, recipe.width + 1, recipe.height)
    assert not is_supported("h264", START_CODE, 320, 180)


def test_parameter_sets_in_band_count(tmp_path: Any) -> None:
    """avc3 and hev1 files may have them there alone, or others than in their sample description."""
    few = store_clip(write(Recipe(frames=20, gop=10, params=(("ref", "1"),)), tmp_path / "few.mp4"), tmp_path)
    folder = tmp_path / "many"
    folder.mkdir()
    many = store_clip(write(Recipe(frames=20, gop=10, params=(("ref", "9"),)), folder / "many.mp4"), folder)
    sets = parameters(many.codec, many.stsd).sets
    units = [unit for unit in sets.split(START_CODE) if unit]
    part = slice_of(few, [3, 14])
    ends = np.cumsum(part.sizes)
    first = b"".join(len(unit).to_bytes(4, "big") + unit for unit in units) + part.data[: ends[0]].tobytes()
    changed = replace(
        part,
        data=np.concatenate([np.frombuffer(first, np.uint8), part.data[ends[0] :]]),
        sizes=np.array([len(first), *part.sizes[1:]]),
    )
    before = split_at_idr([part], [(None, 0)])
    after = split_at_idr([changed], [(None, 0)])
    assert [one.pictures for one in before] == [4, 4]
    assert [one.pictures for one in after] == [9, 9]
    # The second has none of its own, and may go to another decoder than the first.
    assert all(sets in one.packets[0] for one in after)
    assert not any(sets in one.packets[0] for one in before)


def test_cores_leave_small_frames_to_the_engines() -> None:
    waiting = DecodeQueue(engines=1)
    batch = JobGroup(90)
    small = [replace(run(0, 90, batch), kind=SessionKey("hevc", 640, 272, 10, "93")) for _ in range(60)]
    large = [run(0, 30, batch) for _ in range(30)]
    waiting.put([*small, *large])
    core = Worker(waiting, spare=True)
    deadline = time.monotonic() + 5
    while len(core.taken) < 30 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert {one.kind for one in core.taken} == {large[0].kind}
    assert len(core.taken) == 30
    waiting.end()


def test_cores_take_short_runs_together() -> None:
    waiting = DecodeQueue(engines=1)
    batch = runs(*((0, n) for n in (100, 7, 8, 9, 30, 2)))
    waiting.put(batch)
    # Once it has ended, none waits for more.
    waiting.end()
    # 22 frames of 720p are worth it.
    assert waiting.spare() == [batch[n] for n in (5, 1, 2, 3)]
    assert waiting.spare() == [batch[4]]
    # 100 of 100 packets are too many: the engine has them done sooner than a core would.
    assert waiting.spare() == []
    assert waiting.take(current=None, opened=[], block=True) is batch[0]


@pytest.mark.parametrize("name", ["h264", "h264_interlaced", "h264_open_gop", "hevc", "hevc_open_gop", "hevc_10bit"])
def test_runs_decode_on_a_core_to_the_planes_of_the_sequential_decode(name: str, tmp_path: Any) -> None:
    """What spare cores decode: parameter sets are in band, and nothing lies between runs."""
    recipe = hard_recipes()[name]
    clip = store_clip(write(recipe, tmp_path / "source.mp4"), tmp_path)
    with av.open(str(clip.mp4)) as container:
        whole = [frame.to_ndarray() for frame in container.decode(video=0)]
    rng = np.random.default_rng(1)
    wanted = np.sort(rng.choice(len(whole), 7, replace=False))
    found = {}
    # One for all, as cores keep theirs.
    decoder = ReusableCodecContext()
    for piece in reversed(split_at_idr([slice_of(clip, wanted)], [(None, 0)])):
        for frame in decoder.decode(clip.codec, b"", zip(piece.packets, piece.ranks, strict=True)):
            if frame.pts in piece.rows:
                found[piece.rows[frame.pts]] = frame.to_ndarray()
                # Nobody asks for the frames behind it.
                if set(piece.rows.values()) <= found.keys():
                    break
    assert sorted(found) == list(range(7))
    for row, number in enumerate(wanted.tolist()):
        np.testing.assert_array_equal(found[row], whole[number])
