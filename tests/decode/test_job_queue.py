"""The decode queue: every job is taken once, batches in order, and no job waits for a worker that never comes."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.bitstream.annexb import NAL_SYNTAX, parameter_sets
from streamvid.bitstream.packets import Packets, nal_units
from streamvid.decode.decode_job import NOT_WANTED, GopJob, JobGroup
from streamvid.decode.gop_jobs import split_at_idr
from streamvid.decode.job_queue import _AGAIN, CPU_BACKLOG, CPU_MIN_PIXELS, ENOUGH, SESSION_OPEN_PACKETS, DecodeQueue
from streamvid.decode.session_key import SessionKey, session_key
from streamvid.errors import GpuLostError, VideoError
from streamvid.video.codec_context import ReusableCodecContext, in_band_description, reorder_depth
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.remux import store_clip
from tests.support.clips import hard_clips, write
from tests.support.clock import soon
from tests.support.reference import slice_of
from tools.clips import Recipe


def key(number: int) -> SessionKey:
    return SessionKey("h264", 1920, 1080 + 2 * number, 8, "")


def job(of: int, packets: int, group: JobGroup) -> GopJob:
    nothing: Any = None
    clip: Any = SimpleNamespace(name="clip", stsd=b"")
    rows = np.where(np.arange(packets), NOT_WANTED, 0).astype(np.int32)
    return GopJob(clip, nothing, Packets.of([b""] * packets), True, np.arange(packets), rows, key(of), 4, True, group)


def jobs(*shapes: tuple[int, int]) -> list[GopJob]:
    """A batch with a job for each decoder configuration and number of packets."""
    group = JobGroup(len(shapes))
    return [job(of, packets, group) for of, packets in shapes]


def split(*slices: EncodedSlice) -> list[GopJob]:
    nothing: Any = None
    return split_at_idr(slices, [nothing] * len(slices))


class Worker(threading.Thread):
    """Takes as an engine or a CPU core does, and keeps at most so many sessions open."""

    def __init__(self, queue: DecodeQueue, *, cpu: bool = False, most: int = 2) -> None:
        super().__init__(daemon=True)
        self.queue, self.cpu, self.most = queue, cpu, most
        self.taken: list[GopJob] = []
        self.opened: list[SessionKey] = []
        self.start()

    def take(self) -> list[GopJob]:
        if self.cpu:
            return self.queue.take_for_cpu()
        current = self.opened[-1] if self.opened else None
        taken = self.queue.take(current=current, opened=self.opened, wait_s=0)
        taken = taken or self.queue.take(current=current, opened=self.opened, wait_s=None)
        return [taken, *self.queue.take_more(taken)] if taken else []

    def run(self) -> None:
        while jobs := self.take():
            assert len({(one.key, one.group) for one in jobs}) == 1
            for taken in jobs:
                if not self.cpu:
                    if taken.key in self.opened:
                        self.opened.remove(taken.key)
                    elif len(self.opened) == self.most:
                        self.queue.session_closed(self.opened.pop(0))
                    self.opened.append(taken.key)
                time.sleep(len(taken.packets) * 1e-5)
                self.taken.append(taken)
                taken.group.finish()


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 200)), max_size=12), max_size=5),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 3),
)
def test_every_job_is_taken_once(batches: list[list[tuple[int, int]]], engines: int, cores: int, most: int) -> None:
    queue = DecodeQueue(engines=engines)
    workers = [Worker(queue, most=most) for _ in range(engines)]
    workers += [Worker(queue, cpu=True) for _ in range(cores)]
    made = [jobs(*shapes) for shapes in batches]
    for batch in made:
        queue.put(batch)
    for batch in made:
        if batch:
            batch[0].group.wait()
    queue.close()
    for worker in workers:
        worker.join(120)
        assert not worker.is_alive()
    taken = [id(one) for worker in workers for one in worker.taken]
    assert sorted(taken) == sorted(id(one) for batch in made for one in batch)


def test_batches_come_in_order_and_the_longest_first() -> None:
    queue = DecodeQueue(engines=1)
    first, second = jobs((0, 3), (0, 9), (0, 5)), jobs((0, 100))
    queue.put(first)
    queue.put(second)
    order = [queue.take(current=key(0), opened=[key(0)], wait_s=0) for _ in range(5)]
    assert order == [first[1], first[2], first[0], second[0], None]


def test_short_jobs_of_a_batch_are_taken_together_while_many_wait() -> None:
    queue = DecodeQueue(engines=2)
    first, second = jobs(*((0, 10) for _ in range(40))), jobs((0, 10), (0, 10))
    lone = replace(first[2], in_order=False)
    queue.put([*first[:2], lone, *first[3:]])
    queue.put(second)
    calls = []
    while (taken := queue.take(current=key(0), opened=[key(0)], wait_s=0)) is not None:
        calls.append([taken, *queue.take_more(taken)])
    assert [one for call in calls for one in call] == [*first[:2], lone, *first[3:], *second]
    assert [len(call) for call in calls[:4]] == [2, 1, 4, 4]
    assert [len(call) for call in calls[-4:]] == [2, 1, 1, 1]


def test_a_spare_thread_takes_jobs_while_sessions_are_drained_between_them() -> None:
    def taken(batch: list[GopJob]) -> int:
        queue = DecodeQueue(engines=1)
        queue.put(batch)
        found = 0
        while queue.take(current=None, opened=[one.key for one in batch], wait_s=0, spare=True) is not None:
            found += 1
        queue.close()
        left = 0
        while queue.take(current=None, opened=[], wait_s=None, spare=True) is not None:
            left += 1
        assert found + left == len(batch)
        return found

    assert taken(jobs((0, 9), (0, 5))) == 0
    assert taken([replace(one, starts_with_idr=False) for one in jobs((0, 9), (0, 5))]) == 2
    # Down to the last configuration.
    assert taken(jobs((0, 9), (1, 5), (0, 5), (2, 7))) == 3
    assert taken([replace(one, starts_with_idr=False) for one in jobs((0, 9), (0, 5))]) == 2
    assert taken([replace(one, timed=False) for one in jobs((0, 9), (0, 5))]) == 2


def test_an_engine_prefers_jobs_for_its_open_sessions() -> None:
    queue = DecodeQueue(engines=2)
    mixed = jobs((0, 5), (1, 5), (2, 5), (1, 5))
    queue.put(mixed)
    taken = [queue.take(current=key(1), opened=[key(0), key(1)], wait_s=0) for _ in range(4)]
    assert taken == [mixed[1], mixed[3], mixed[0], mixed[2]]


def test_a_second_session_is_opened_where_it_pays() -> None:
    queue = DecodeQueue(engines=3)
    few = jobs((0, SESSION_OPEN_PACKETS // 2), (0, SESSION_OPEN_PACKETS // 2))
    queue.put(few)
    assert queue.take(current=None, opened=[], wait_s=0) is few[0]
    # Another engine has a session for it, and a second one does not pay.
    assert queue.take(current=None, opened=[], wait_s=0) is None
    many = jobs((0, 3 * SESSION_OPEN_PACKETS), (0, 3 * SESSION_OPEN_PACKETS))
    queue.put(many)
    assert queue.take(current=None, opened=[], wait_s=0) is few[1]
    assert queue.take(current=None, opened=[], wait_s=0) in many


def test_an_engine_opens_a_session_after_the_delay() -> None:
    """The one engine that has a session for it is busy."""
    queue = DecodeQueue(engines=2)
    few = jobs((0, 1), (0, 1))
    queue.put(few)
    assert queue.take(current=None, opened=[], wait_s=None) is few[0]
    assert queue.take(current=None, opened=[], wait_s=None) is few[1]


def test_cores_leave_the_last_jobs_to_the_engines() -> None:
    queue = DecodeQueue(engines=4)
    queue.put(jobs(*((0, 40) for _ in range(20))))
    core = Worker(queue, cpu=True)
    # From here on the queue holds fewer than `CPU_BACKLOG` such jobs for each of the four engines.
    kept = CPU_BACKLOG * 4 - 1
    soon(lambda: len(core.taken) >= 20 - kept)
    time.sleep(0.05)
    assert len(core.taken) == 20 - kept
    queue.close()
    left = [queue.take(current=None, opened=[key(0)], wait_s=None) for _ in range(kept + 1)]
    assert None not in left[:kept]
    assert left[kept] is None


@pytest.mark.parametrize("engines", [1, 0])
def test_cores_idle_while_enough_batches_wait_for_the_loop(engines: int) -> None:
    """Unless there is nobody else."""
    queue = DecodeQueue(engines=engines)
    for _ in range(ENOUGH):
        queue.waiting(1)
    queue.put(jobs(*((0, 40) for _ in range(20))))
    core = Worker(queue, cpu=True)
    assert soon(lambda: core.taken, 0.05 if engines else 120) == (not engines)
    queue.waiting(-1)
    assert soon(lambda: core.taken)
    queue.close()


@pytest.mark.parametrize(("height", "waiting", "woken"), [(1080, 0, True), (1080, ENOUGH, False), (272, 0, False)])
def test_cores_are_not_woken_for_jobs_that_they_leave_to_the_engines(height: int, waiting: int, woken: bool) -> None:
    """Each of dozens would take the GIL for nothing, at every batch."""
    queue, wakes = DecodeQueue(engines=1), list[int]()
    queue._for_cores.notify_all = lambda: wakes.append(1)  # type: ignore[method-assign]
    queue.waiting(waiting)
    queue.put([replace(one, key=one.key._replace(height=height)) for one in jobs((0, 40))])
    queue.waiting(1)
    queue.waiting(-1)
    assert wakes == [1, 1] * woken


def test_cores_take_jobs_of_the_newest_batch() -> None:
    queue = DecodeQueue(engines=1)
    first, second = jobs(*((0, 30) for _ in range(4))), jobs(*((0, 30) for _ in range(4)))
    queue.put(first)
    queue.put(second)
    queue.close()
    taken = [queue.take_for_cpu() for _ in range(4)]
    assert [one for some in taken for one in some] == second[::-1]
    assert queue.take_for_cpu() == [first[-1]]


def test_cores_take_no_job_of_an_older_batch_that_engines_come_to_soon() -> None:
    """Only what is queued before it counts, and not the newer batch, which is not for cores either."""
    queue = DecodeQueue(engines=1)
    queue.put(jobs((0, 30)))
    queue.put(jobs((0, 100)))
    queue.close()
    assert queue.take_for_cpu() == []


def test_cores_that_are_slower_leave_more_to_the_engines_and_try_again() -> None:
    queue = DecodeQueue(engines=1)
    batch = jobs(*((0, 30) for _ in range(15)))
    queue.put(batch)
    queue.core_took(key(0), 12.0)
    queue.close()
    # The engine does 12 jobs in the time that a core takes for one.
    assert [queue.take_for_cpu() for _ in range(5)] == [batch[14:], batch[13:14], batch[12:13], batch[11:12], []]
    queue = DecodeQueue(engines=1)
    queue.core_took(key(0), 1e6)
    queue.put(jobs(*((0, 30) for _ in range(_AGAIN + 20))))
    queue.close()
    assert not queue.take_for_cpu()
    for _ in range(_AGAIN):
        queue.take(current=key(0), opened=[key(0)], wait_s=0)
    assert queue.take_for_cpu()
    assert not queue.take_for_cpu()


@pytest.mark.parametrize(
    ("codec", "exact", "reason", "refused"),
    [
        ("h264", True, "again no", True), ("h264", True, "again no: CUDA_ERROR_OUT_OF_MEMORY", False),
        ("hevc", False, "again no", False), ("vp9", False, "again no", True),
    ],
)  # fmt: skip
def test_a_job_is_tried_twice(codec: str, exact: bool, reason: str, refused: bool) -> None:
    """Then cores decode its clip, unless they would make other frames, or the clip is not at fault."""
    queue = DecodeQueue(engines=1)
    bad, good = jobs((0, 1), (0, 2))
    bad = replace(bad, key=key(0)._replace(codec=codec, exact=exact))
    queue.put([bad, good])
    assert queue.take(current=good.key, opened=[good.key], wait_s=0) is good
    assert queue.take(current=bad.key, opened=[bad.key], wait_s=0) is bad
    queue.retry(bad, VideoError("no"))
    assert not queue.refuses(bad.encoded)
    again = queue.take(current=bad.key, opened=[bad.key], wait_s=0)
    assert again is not None
    assert again.retry_of
    assert replace(again, retry_of=None).packets is bad.packets
    queue.retry(again, VideoError(reason))
    assert queue.refuses(bad.encoded) is refused
    other: Any = SimpleNamespace(name="clip", stsd=b"of a clip of another dataset")
    assert not queue.refuses(other)
    good.group.finish()
    with pytest.raises(VideoError, match="again no"):
        good.group.wait()


def test_without_engines_nothing_is_retried() -> None:
    queue = DecodeQueue(engines=0)
    (only,) = jobs((0, 5))
    queue.put([only])
    assert queue.take_for_cpu() == [only]
    queue.retry(only, VideoError("no"))
    assert not queue.refuses(only.encoded)  # no engine has tried it
    with pytest.raises(VideoError, match="no"):
        only.group.wait()


def test_a_group_waits_for_all_jobs_even_if_one_fails() -> None:
    group = JobGroup(2)
    seen = []

    class Event:
        def synchronize(self) -> None:
            seen.append("written")

    group.fail(VideoError("no"))
    thread = threading.Thread(target=group.finish, args=(Event(),))
    thread.start()
    with pytest.raises(VideoError, match="no"):
        group.wait()
    thread.join()
    assert seen == ["written"]


def test_a_worker_waits_for_the_next_job_as_long_as_it_says() -> None:
    queue, (first,) = DecodeQueue(engines=1), jobs((0, 4))
    assert queue.take(current=None, opened=[], wait_s=0.01) is None
    thread = threading.Timer(0.05, queue.put, [[first]])
    thread.start()
    assert queue.take(current=None, opened=[], wait_s=60) is first
    thread.join()


def test_slices_are_split_at_idr_pictures(tmp_path: Any) -> None:
    clip = store_clip(write(Recipe(frames=40, gop=10, b_frames=2), tmp_path / "source.mp4"), tmp_path)
    part = slice_of(clip, [3, 4, 19, 38])
    cuts = split(part)
    sets = parameter_sets(clip.codec, clip.stsd).annex_b
    assert len(cuts) == 3
    for piece in cuts:
        assert piece.starts_with_idr
        assert piece.packets[0].startswith(sets)
        packets, syntax = piece.packets, NAL_SYNTAX["h264"]
        units = [syntax.leading_units(packets.stored(n), packets.length_size) for n in range(1, len(packets))]
        assert not any(map(syntax.is_idr, units))
        assert len(piece.packets) == len(piece.display_order)
    assert sum(len(piece.packets) for piece in cuts) == len(part.sizes)
    assert [row for piece in cuts for row in sorted(piece.dst_rows.values())] == [0, 1, 2, 3]
    assert {rank for piece in cuts for rank in piece.dst_rows} == set(part.frames.tolist())
    torn = replace(part, data=np.zeros_like(part.data))
    with pytest.raises(VideoError, match="damaged"):
        split(part, torn)
    twice = replace(part, frames=np.arange(len(part.sizes)), display_order=part.display_order // 2 * 2)
    with pytest.raises(VideoError, match=f"no packet for {len(part.sizes) // 2} of its frames"):
        split(twice)


def test_session_keys(tmp_path: Any) -> None:
    for recipe in (Recipe(frames=2), Recipe(frames=2, codec="hevc", pix_fmt="yuv420p10le")):
        (folder := tmp_path / recipe.codec).mkdir()
        clip = store_clip(write(recipe, folder / "source.mp4"), folder)
        found, _ = session_key(clip.codec, clip.stsd, recipe.width, recipe.height)
        assert found.surface_bytes == recipe.width * recipe.height * 3 // 2 * (2 if "10" in recipe.pix_fmt else 1)


def test_parameter_sets_in_band_count(tmp_path: Any) -> None:
    """avc3 and hev1 files may have them there alone, or others than in their sample description."""
    few = store_clip(write(Recipe(frames=20, gop=10, params=(("ref", "1"),)), tmp_path / "few.mp4"), tmp_path)
    folder = tmp_path / "many"
    folder.mkdir()
    many = store_clip(write(Recipe(frames=20, gop=10, params=(("ref", "9"),)), folder / "many.mp4"), folder)
    sets = parameter_sets(many.codec, many.stsd).annex_b
    units = nal_units(sets)
    part = slice_of(few, [3, 14])
    ends = np.cumsum(part.sizes)
    first = b"".join(len(unit).to_bytes(4, "big") + unit for unit in units) + part.data[: ends[0]].tobytes()
    changed = replace(
        part,
        data=np.concatenate([np.frombuffer(first, np.uint8), part.data[ends[0] :]]),
        sizes=np.array([len(first), *part.sizes[1:]]),
    )
    before = split(part)
    after = split(changed)
    assert [one.dpb_frames for one in before] == [4, 4]
    assert [one.dpb_frames for one in after] == [9, 9]
    # The second has none of its own, and may go to another decoder than the first.
    assert all(sets in one.packets[0] for one in after)
    assert not any(sets in one.packets[0] for one in before)


@pytest.mark.parametrize(
    "key", [SessionKey("hevc", 640, 272, 10, "93"), SessionKey("hevc", 1920, 1080, 8, "", exact=False)], ids=str
)
def test_cores_leave_to_the_engines(key: SessionKey) -> None:
    """Small frames, and streams of which FFmpeg makes other samples."""
    queue = DecodeQueue(engines=1)
    group = JobGroup(90)
    left = [replace(job(0, 90, group), key=key) for _ in range(60)]
    taken = [job(0, 30, group) for _ in range(30)]
    queue.put([*left, *taken])
    core = Worker(queue, cpu=True)
    soon(lambda: len(core.taken) >= 30)
    assert {one.key for one in core.taken} == {taken[0].key}
    assert len(core.taken) == 30
    queue.close()


def test_cores_take_short_jobs_together() -> None:
    queue = DecodeQueue(engines=1)
    batch = jobs(*((0, n) for n in (100, 7, 8, 9, 30, 2)))
    queue.put(batch)
    # A closed queue does not block.
    queue.close()
    # Ten frames of 1080p are worth it.
    assert queue.take_for_cpu() == [batch[n] for n in (5, 1, 2)]
    assert queue.take_for_cpu() == [batch[n] for n in (3, 4)]
    # 100 of 100 packets are too many: the engine has them done sooner than a core would.
    assert queue.take_for_cpu() == []
    assert queue.take(current=None, opened=[], wait_s=None) is batch[0]


@pytest.mark.parametrize(("longest", "taken"), [(43, 0), (44, 1)])
def test_cores_take_a_job_from_the_backlog_on(longest: int, taken: int) -> None:
    """With one engine: while the queue holds `CPU_BACKLOG` times its packets, itself included."""
    queue = DecodeQueue(engines=1)
    batch = jobs((0, longest), (0, 22))
    queue.put(batch)
    queue.close()
    assert 22 * CPU_BACKLOG == 66
    assert queue.take_for_cpu() == batch[1:][:taken]


def test_cores_take_jobs_of_exactly_the_least_pixels() -> None:
    queue = DecodeQueue(engines=1)
    batch = [replace(one, key=SessionKey("h264", 2000, 1000, 8, "")) for one in jobs(*[(0, 10)] * CPU_BACKLOG)]
    assert CPU_MIN_PIXELS == 10 * 2000 * 1000
    queue.put(batch)
    queue.close()
    # Two at once would need twice as many in the queue.
    assert queue.take_for_cpu() == batch[-1:]


@pytest.mark.parametrize("name", ["h264", "h264_interlaced", "h264_open_gop", "hevc", "hevc_open_gop", "hevc_10bit"])
def test_jobs_decode_on_the_cpu_to_the_planes_of_the_sequential_decode(name: str, tmp_path: Any) -> None:
    """As the CPU assist decodes: parameter sets in band, one codec context for all jobs."""
    recipe = hard_clips()[name]
    clip = store_clip(write(recipe, tmp_path / "source.mp4"), tmp_path)
    with av.open(str(clip.mp4)) as container:
        whole = [frame.to_ndarray() for frame in container.decode(video=0)]
    rng = np.random.default_rng(1)
    wanted = np.sort(rng.choice(len(whole), 7, replace=False))
    found = {}
    decoder = ReusableCodecContext()
    in_band = in_band_description(clip.codec, width=clip.width, height=clip.height)
    for piece in reversed(split(slice_of(clip, wanted))):
        packets = zip(piece.packets, piece.display_order.tolist(), strict=True)
        for frame in decoder.decode(in_band, packets, reorder=reorder_depth(piece.display_order)):
            if frame.pts in piece.dst_rows:
                found[piece.dst_rows[frame.pts]] = frame.to_ndarray()
                # Nobody asks for the frames behind it.
                if set(piece.dst_rows.values()) <= found.keys():
                    break
    assert sorted(found) == list(range(7))
    for row, number in enumerate(wanted.tolist()):
        np.testing.assert_array_equal(found[row], whole[number])


def test_a_group_that_is_abandoned_waits_for_nobody() -> None:
    class Event:
        def synchronize(self) -> None:
            raise AssertionError("a stuck stream is waited for")

    queue, group, event = DecodeQueue(engines=1), JobGroup(3), Event()
    first, second, third = (job(0, 5, group) for _ in range(3))
    first.group.finish(cast(Any, event))
    group.abandon(VideoError("stuck"))
    with pytest.raises(VideoError, match="stuck"):
        group.wait()
    # Whoever still works on it may end as it likes; nothing of it is tried again.
    second.group.finish()
    queue.retry(third, VideoError("late"))
    assert queue.take(current=None, opened=(), wait_s=0) is None
    group.abandon(GpuLostError("again"))
    with pytest.raises(VideoError, match="stuck"):
        group.wait()


def test_a_group_that_is_done_cannot_be_abandoned_any_more() -> None:
    group = JobGroup(1)
    group.finish()
    group.abandon(VideoError("late"))
    group.wait()


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("cuvidCreateDecoder: CUDA_ERROR_OUT_OF_MEMORY (2)", "free memory of the GPU"),
        ("m_api.cuvidCreateDecoder(&decoder, &info) returned error 2 at NvDecoder.cpp:430", "free memory of the GPU"),
        ("cuvidDecodePicture: CUDA_ERROR_INVALID_VALUE (1)", "streamvid verify"),
    ],
)
def test_a_gpu_without_memory_is_not_called_a_damaged_clip(reason: str, advice: str, tmp_path: Any) -> None:
    clip = store_clip(write(Recipe(frames=4), tmp_path / "source.mp4"), tmp_path)
    (job,) = split(slice_of(clip, [0]))
    assert advice in str(job.as_video_error(RuntimeError(reason)))
