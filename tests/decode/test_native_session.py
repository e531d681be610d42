"""Sessions of the native module, with a stand-in for the driver whose pictures are functions of their seeds."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from numpy.lib.stride_tricks import as_strided

from streamvid.arrays import Int32, Int64
from streamvid.bitstream.packets import Packets
from streamvid.color.surfaces import Window
from streamvid.decode import nvdec_library
from streamvid.decode.decode_job import NOT_SHOWN, NOT_WANTED, GopJob, JobGroup
from streamvid.decode.native_session import NativeSession, largest
from streamvid.decode.nvdec_library import NvdecLibrary
from streamvid.decode.session_key import SessionKey
from streamvid.errors import VideoError
from tests.support.nvdec_driver import SOURCES, StandIn, compile_c, stand_in

KEY = SessionKey("h264", 64, 48, 8, "")
IPBB = (0, 3, 1, 2, 6, 4, 5, 7)
"""Display order of packets with B-frames."""


@dataclass(frozen=True)
class Coded:
    """What a packet of the stand-in's format says of its picture."""

    width: int = 64
    height: int = 48
    coded_width: int = 64
    coded_height: int = 48
    left: int = 0
    top: int = 0
    depth: int = 8
    surfaces: int = 6
    reorder: int = 2

    def packet(self, *, seed: int, order: int, key: bool, broken: bool = False, shown: bool = True) -> bytes:
        sizes = (self.width, self.height, self.coded_width, self.coded_height, self.left, self.top)
        flags = (self.depth, self.surfaces, self.reorder, key, shown, broken, 0, 0)
        return struct.pack("<IIi6H8B", 0, seed, order, *sizes, *flags)

    def picture(self, seed: int) -> npt.NDArray[np.integer[Any]]:
        """NV12 of what is shown, both sides rounded up to even ones."""
        wide, high = -(-self.width // 2) * 2, -(-self.height // 2) * 2
        row, x = np.mgrid[: self.coded_height * 3 // 2, : self.coded_width].astype(np.uint32)
        with np.errstate(over="ignore"):
            h = np.uint32(seed) * np.uint32(2654435761) ^ row * np.uint32(40503) ^ x * np.uint32(2246822519)
            value = ((h ^ h >> 13) * np.uint32(3266489917)) >> 16
        samples = value.astype(np.uint16 if self.depth > 8 else np.uint8)[:, self.left : self.left + wide]
        luma = samples[self.top : self.top + high]
        return np.concatenate([luma, samples[self.coded_height + self.top // 2 :][: high // 2]])


def job(
    first_seed: int, *, coded: Coded | None = None, order: Sequence[int] = IPBB, wanted: Sequence[int] | None = None,
    broken: int = -1, dpb_frames: int = 0, codec: str = "h264", hidden: Sequence[int] = (),
    window: Window | None = None,
) -> GopJob:  # fmt: skip
    """Pictures whose seeds count up in display order from the first, which is also the row of the first."""
    coded = coded or Coded()
    ranks = range(len(order)) if wanted is None else wanted
    encoded: Any = SimpleNamespace(name=f"clip-{first_seed}")
    target: Any = SimpleNamespace(window=window or Window(0, coded.height, 0, coded.width))
    return GopJob(
        encoded=encoded,
        target=target,
        packets=Packets.of(
            [
                coded.packet(
                    seed=first_seed + rank, order=rank, key=n == 0, broken=n == broken, shown=rank not in hidden
                )
                for n, rank in enumerate(order)
            ]
        ),
        starts_with_idr=True,
        display_order=np.array(order),
        rows=np.array(
            [NOT_SHOWN if r in hidden else first_seed + r if r in ranks else NOT_WANTED for r in order], dtype=np.int32
        ),
        key=SessionKey(codec, coded.width, coded.height, coded.depth, ""),
        dpb_frames=dpb_frames,
        in_order=True,
        group=JobGroup(1),
    )


class Lane:
    """A session, and what came out of it."""

    def __init__(
        self,
        driver: StandIn,
        key: SessionKey = KEY,
        *,
        slots: int = 8,
        ahead: int = 0,
        late: bool = False,
        **options: int,
    ) -> None:
        self._late = late
        self._driver = driver
        self._taken: list[tuple[int, int, list[npt.NDArray[np.uint8]]]] = []
        self.launches: list[int] = []
        self._windows: dict[int, Window] = {}
        self.pitches: dict[int, int] = {}
        self.session = NativeSession(
            driver.library, device_id=0, key=key, stream=0, slots=slots, ahead=ahead, take=self.take,
            launch=self.launch, **options,
        )  # fmt: skip

    def take(self, number: int, rows: Int32, surfaces: Int64) -> None:
        for row, surface in zip(rows.tolist(), surfaces.tolist(), strict=True):
            self._take_one(number, row, *surface)

    def _take_one(self, number: int, row: int, surface: int, pitch: int, chroma_at: int) -> None:
        kind = np.uint16 if self.session.key.bit_depth > 8 else np.uint8
        top, bottom, left, right = (-(-side // 2) * 2 for side in self._windows[number])
        width, strides = right - left, (pitch * np.dtype(kind).itemsize, np.dtype(kind).itemsize)
        self.pitches[number] = pitch
        planes = []
        for at, first, end in ((surface, top, bottom), (surface + chroma_at, top // 2, bottom // 2)):
            count = end - first
            memory = np.zeros(strides[0] * (count - 1) + width * strides[1], np.uint8)
            self._driver.copy(memory, at + first * strides[0] + left * strides[1])
            planes.append(as_strided(memory.view(kind), (count, width), strides))
        if not self._late:
            self._driver.synchronize()
        self._taken.append((number, row, planes))

    @property
    def shown(self) -> list[tuple[int, int, npt.NDArray[np.uint8]]]:
        return [(number, row, np.concatenate(planes)) for number, row, planes in self._taken]

    def launch(self) -> None:
        self.launches.append(len(self._taken))

    def decode(self, number: int, one: GopJob) -> None:
        self._windows[number] = one.target.window
        self.session.decode(number, [one])

    def decode_all(self, jobs: Sequence[GopJob]) -> None:
        self._windows |= {number: one.target.window for number, one in enumerate(jobs, 1)}
        self.session.decode(1, jobs)
        self.session.flush()

    def finish(self) -> list[tuple[int, int, npt.NDArray[np.uint8]]]:
        self.session.flush()
        self.session.close()
        return self.shown


@pytest.fixture
def driver() -> Iterator[StandIn]:
    found = stand_in()
    found.reset()
    yield found
    found.reset()
    assert found.open_objects() == 0


def places(shown: Sequence[tuple[int, int, Any]]) -> list[tuple[int, int]]:
    return [(number, row) for number, row, _ in shown]


@pytest.mark.parametrize("options", [{}, {"delay": 0}, {"delay": 8, "extra_surfaces": 8}])
def test_wanted_pictures_of_jobs_in_a_row_come_in_the_order_of_display(
    driver: StandIn, options: Mapping[str, int]
) -> None:
    lane = Lane(driver, **options)
    wanted = [1, 2, 5, 7]
    for number in range(1, 6):
        lane.decode(number, job(100 * number, wanted=wanted))
        assert lane.session.confirmed in (number, number - 1)
        assert lane.session.packets == 8 * number
    assert lane.session.counts[:2] == (1, 0)
    shown = lane.finish()
    assert places(shown) == [(number, 100 * number + rank) for number in range(1, 6) for rank in wanted]
    for _, row, picture in shown:
        np.testing.assert_array_equal(picture, Coded().picture(row))


def test_packets_that_show_nothing_are_not_waited_for(driver: StandIn) -> None:
    lane = Lane(driver)
    for number in (1, 2):
        lane.decode(number, job(100 * number, wanted=[1, 4, 7], hidden=[0, 3, 6]))
    assert places(lane.finish()) == [(n, 100 * n + rank) for n in (1, 2) for rank in (1, 4, 7)]


def test_pictures_that_are_not_wanted_are_never_mapped(driver: StandIn) -> None:
    lane = Lane(driver)
    driver.fail("cuvidMapVideoFrame64", 3)
    lane.decode(1, job(0, wanted=[6]))
    lane.decode(2, job(100, wanted=[2]))
    assert places(lane.finish()) == [(1, 6), (2, 102)]


@pytest.mark.parametrize(
    "coded",
    [
        Coded(coded_height=64),
        Coded(coded_width=80, coded_height=64, left=6, top=2),
        Coded(width=63, height=47),
        Coded(depth=10, coded_height=64),
        Coded(depth=12, coded_width=96, left=4),
    ],
)
def test_what_is_not_shown_is_left_out(driver: StandIn, coded: Coded) -> None:
    key = SessionKey("hevc", coded.width, coded.height, coded.depth, "")
    lane = Lane(driver, key)
    lane.decode(1, job(7, coded=coded, codec="hevc"))
    for _, row, picture in lane.finish():
        np.testing.assert_array_equal(picture, coded.picture(row))


@pytest.mark.parametrize(
    ("coded", "pitches"),
    [
        (Coded(width=318, height=46, coded_width=320, left=2, top=2), [320, 128, 128, 128, 64, 64]),
        (Coded(width=317, height=47, coded_width=320), [320, 64, 192, 128, 64, 64]),
        (Coded(width=318, height=46, coded_width=320, depth=10), [320, 64, 128, 128, 32, 32]),
    ],
)
def test_of_each_picture_the_window_of_its_job_is_copied(driver: StandIn, coded: Coded, pitches: Sequence[int]) -> None:
    high, wide = coded.height, coded.width
    windows = [
        Window(0, high, 0, wide), Window(0, high, 64, 128), Window(8, 30, 62, 130), Window(6, high, 200, wide),
        Window(0, 2, 0, 2), Window(44, high, 316, wide),
    ]  # fmt: skip
    lane = Lane(driver, SessionKey("hevc", wide, high, coded.depth, ""))
    lane.decode_all([job(100 * n, coded=coded, codec="hevc", window=one) for n, one in enumerate(windows)])
    shown = lane.finish()
    assert len(shown) == 8 * len(windows)
    assert list(lane.pitches.values()) == pitches
    for number, row, picture in shown:
        top, bottom, left, right = windows[number - 1]
        whole = coded.picture(row)[:, left : right + right % 2]
        lines = [*range(top, bottom + bottom % 2), *(high + high % 2 + n // 2 for n in range(top, bottom, 2))]
        np.testing.assert_array_equal(picture, whole[lines])


def test_a_session_is_set_to_other_sizes_and_opened_anew_for_larger_ones_alone(driver: StandIn) -> None:
    sizes = [
        Coded(width=16 * n, height=16 * m, coded_width=16 * n, coded_height=16 * m) for n in (2, 4) for m in (3, 1)
    ]
    larger = Coded(width=128, height=96, coded_width=128, coded_height=96)
    streams = [*(sizes[number * 7 % 4] for number in range(40)), larger, replace(larger, surfaces=16), sizes[0]]
    lane, opened = Lane(driver), driver.decoders_opened()
    for number, coded in enumerate(streams):
        lane.decode(number, job(number * 10, coded=coded, dpb_frames=coded.surfaces))
        assert driver.decoders_opened() == opened + (1 if number < 40 else 2 if number == 40 else 3)
    assert lane.session.counts == (3, 40, 16 + 6, 128, 96)
    shown = lane.finish()
    assert len(shown) == 8 * len(streams)
    for number, row, picture in shown:
        np.testing.assert_array_equal(picture, streams[number].picture(row))


def test_pictures_are_handed_over_where_more_than_half_the_slots_are_taken(driver: StandIn) -> None:
    lane = Lane(driver, slots=4, delay=4)
    lane.decode(1, job(0))
    lane.decode(2, job(100))
    assert lane.launches
    assert set(np.diff([0, *lane.launches])) <= {1, 2, 3, 4}
    lane.session.hand_over()
    assert lane.session.oldest_waiting is None
    assert len(lane.finish()) == 16


def test_pictures_of_several_sizes_are_handed_over_together(driver: StandIn) -> None:
    streams = [Coded(width=16 * n, height=48, coded_width=16 * n) for n in (4, 2, 2, 4, 1)]
    lane = Lane(driver, delay=4)
    for number, coded in enumerate(streams):
        lane.decode(number, job(100 * number, coded=coded, wanted=[0, 6]))
    shown = lane.finish()
    assert lane.launches == [5, 10]
    assert places(shown) == [(n, 100 * n + rank) for n in range(5) for rank in (0, 6)]
    for number, row, picture in shown:
        np.testing.assert_array_equal(picture, streams[number].picture(row))


@pytest.mark.parametrize("slots", [1, 5, 32])
@pytest.mark.parametrize("ahead", [0, 13, 1000])
def test_what_is_queued_is_waited_for_before_its_memory_is_used_again(driver: StandIn, slots: int, ahead: int) -> None:
    """Of the decoder's surface before another picture is decoded to it, of the mapped one before it is unmapped, of the
    copy before another is made in its place."""
    lane = Lane(driver, slots=slots, ahead=ahead, late=True)
    for n in range(12):
        lane.decode(n, job(100 * n, wanted=[0, 2, 3, 7]))
    shown = lane.finish()
    assert places(shown) == [(n, 100 * n + rank) for n in range(12) for rank in (0, 2, 3, 7)]
    assert lane.session.spent()[0] == 12 * 8
    for _, row, picture in shown:
        np.testing.assert_array_equal(picture, Coded().picture(row))


def test_a_turn_that_does_not_end_holds_up_nobody(driver: StandIn) -> None:
    lane = Lane(driver)
    stuck = threading.Thread(target=driver.library.turn().__enter__)
    stuck.start()
    stuck.join()
    with driver.library.turn(), driver.library.turn():
        lane.decode(1, job(0))
    assert len(lane.finish()) == 8


def test_any_number_of_jobs_of_a_picture_can_be_given_while_the_driver_is_slow(driver: StandIn) -> None:
    slow, entered = threading.Event(), ctypes.CFUNCTYPE(None, ctypes.c_char_p)
    wait = entered(lambda name: slow.wait(60) and None if name == b"cuvidDecodePicture" else None)
    driver.calls.standin_entered(wait)
    threading.Timer(0.2, slow.set).start()
    lane = Lane(driver, ahead=10_000)
    for first in range(0, 1000, 50):
        jobs = [job(n, order=[0], wanted=[]) for n in range(first, first + 50)]
        lane.session.decode(first + 1, jobs)
    lane.session.flush()
    lane.session.close()
    assert lane.session.spent()[0] == 1000


def test_a_session_that_is_closed_midway_leaves_nothing_open(driver: StandIn) -> None:
    lane = Lane(driver, delay=4)
    lane.decode(1, job(0, wanted=[0, 1, 2]))
    lane.decode(2, job(100, wanted=[0]))
    assert lane.session.oldest_waiting == 1
    lane.session.stop()
    with pytest.raises(RuntimeError, match="given up"):
        lane.decode(3, job(200))
    lane.session.close()
    assert lane.shown == []
    assert driver.open_objects() == 0


def test_no_more_pictures_wait_than_there_are_slots(driver: StandIn) -> None:
    for slots in (1, 2, 64):
        lane = Lane(driver, slots=slots)
        lane.decode_all([job(100 * n) for n in range(10)])
        assert max(np.diff([0, *lane.launches])) <= slots
        assert len(lane.finish()) == 80
    for slots in (-1, 129):
        with pytest.raises(RuntimeError, match="1 to 128"):
            Lane(driver, slots=slots)


def test_an_error_of_the_caller_comes_out_of_decode(driver: StandIn) -> None:
    lane = Lane(driver, slots=2)

    def launch() -> None:
        raise KeyError("no kernel")

    lane.session._launch = launch
    with pytest.raises(KeyError, match="no kernel"):
        lane.decode_all([job(10), job(20)])
    lane.session.close()


IN_DECODING = (
    "cuCtxPushCurrent_v2", "cuStreamSynchronize",
    "cuvidParseVideoData", "cuvidCreateDecoder", "cuvidReconfigureDecoder", "cuvidDecodePicture",
    "cuvidMapVideoFrame64", "cuvidUnmapVideoFrame64", "cuMemAlloc_v2", "cuLaunchKernel", "cuEventQuery",
    "cuEventSynchronize",
)  # fmt: skip


@pytest.mark.parametrize("name", IN_DECODING)
def test_an_error_of_the_driver_names_the_call_and_ends_the_session(driver: StandIn, name: str) -> None:
    lane = Lane(driver)
    driver.fail(name, 1, 2)
    small = Coded(width=32, coded_width=32)
    with pytest.raises(
        RuntimeError, match=rf"^{name.split('_')[0].removesuffix('64')}: CUDA_ERROR_OUT_OF_MEMORY \(2\)"
    ):
        lane.decode_all([job(10), job(20), job(30, coded=small)])
    for again in (lambda: lane.session.decode(9, [job(90)]), lane.session.flush):
        with pytest.raises(RuntimeError, match="OUT_OF_MEMORY"):
            again()
    lane.session.close()


IN_OPENING = (
    "cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuModuleLoadData",
    "cuModuleGetFunction", "cuvidCreateVideoParser",
)  # fmt: skip


@pytest.mark.parametrize("name", IN_OPENING)
def test_a_session_that_cannot_be_opened_leaves_nothing_behind(driver: StandIn, name: str) -> None:
    driver.fail(name)
    with pytest.raises(RuntimeError, match="CUDA_ERROR_UNKNOWN"):
        Lane(driver)


@pytest.mark.parametrize("kind", ["lost", "twice", "foreign"])
@pytest.mark.parametrize("nth", [1, 6, 15])
def test_a_picture_too_few_or_too_many_is_noticed_and_none_takes_the_place_of_another(
    driver: StandIn, kind: str, nth: int
) -> None:
    lane = Lane(driver)
    driver.spoil(kind, nth)
    with pytest.raises(RuntimeError, match="out of the decoder"):
        lane.decode_all([job(100), job(200)])
    for number, row, picture in lane.shown:
        assert number == row // 100
        np.testing.assert_array_equal(picture, Coded().picture(row))
    # Nothing behind the error counts as complete.
    assert lane.session.confirmed <= 2 if nth > 8 else lane.session.confirmed <= 1
    lane.session.close()


def test_alone_in_its_decoder_a_job_needs_its_wanted_pictures_and_no_others(driver: StandIn) -> None:
    lane = Lane(driver)
    driver.spoil("lost", 4)
    lane.decode(1, replace(job(0, wanted=[1, 7]), in_order=False))
    lane.session.flush()
    driver.spoil("twice", 4)
    lane.decode(2, replace(job(100, wanted=[1, 7]), in_order=False))
    lane.session.flush()
    driver.spoil("lost", 2)
    lane.decode(3, replace(job(200, wanted=[1, 7]), in_order=False))
    with pytest.raises(RuntimeError, match="do not come out"):
        lane.session.flush()
    assert places(lane.shown) == [(1, 1), (1, 7), (2, 101), (2, 107)]
    lane.session.close()


def test_pictures_whose_times_say_nothing_are_told_by_their_order(driver: StandIn) -> None:
    lane = Lane(driver)
    for number in range(3):
        driver.spoil("foreign", 3)
        lane.decode(number, replace(job(100 * number, hidden=[4]), timed=False))
        lane.session.flush()
    for _, row, picture in lane.shown:
        np.testing.assert_array_equal(picture, Coded().picture(row))
    assert len(lane.shown) == 3 * 7
    driver.spoil("lost", 3)
    lane.decode(3, replace(job(300), timed=False))
    with pytest.raises(RuntimeError, match="do not come out"):
        lane.session.flush()
    lane.session.close()


@pytest.mark.parametrize(
    ("coded", "said"),
    [
        (Coded(width=62), r"clip-5 decodes to 62x48, its dataset says 64x48: pack it again"),
        (Coded(depth=10), r"clip-5 decodes to 10 bits, .* its dataset says 8 bits"),
        (Coded(left=2), r"decodes to 64x48"),
    ],
)
def test_a_stream_that_is_not_what_its_dataset_says_is_refused(driver: StandIn, coded: Coded, said: str) -> None:
    lane = Lane(driver)
    one = job(5, coded=coded)
    with pytest.raises(VideoError, match=said):
        lane.decode(1, replace(one, key=KEY))
    lane.session.close()


def test_of_the_jobs_that_wait_the_one_at_fault_is_named_and_those_before_it_count(driver: StandIn) -> None:
    larger = Coded(width=128, coded_width=128)
    jobs = [job(100 * n, coded=larger if n % 3 == 2 else None) for n in range(12)]
    for at in range(12):
        lane, at_fault = Lane(driver, ahead=60), replace(job(100 * at, coded=Coded(width=62)), key=KEY)

        def decode(lane: Lane = lane, jobs: Sequence[GopJob] = (*jobs[:at], at_fault, *jobs[at + 1 :])) -> None:
            for number, one in enumerate(jobs):
                lane.decode(number, one)
            lane.session.flush()

        with pytest.raises(VideoError, match=rf"clip-{100 * at} decodes to 62x48, its dataset says 64x48"):
            decode()
        for _, row, picture in lane.shown:
            np.testing.assert_array_equal(picture, (larger if row // 100 % 3 == 2 else Coded()).picture(row))
        assert lane.session.confirmed <= at
        lane.session.close()


def test_of_the_jobs_of_a_call_the_one_at_fault_is_named(driver: StandIn) -> None:
    lane = Lane(driver)
    one = replace(job(5, coded=Coded(width=62)), key=KEY)
    with pytest.raises(VideoError, match=r"clip-5 decodes to 62x48"):
        lane.decode_all([job(10), job(20), one, job(30)])
    lane.session.close()


def test_a_stream_like_the_one_before_it_that_is_not_what_its_dataset_says(driver: StandIn) -> None:
    lane = Lane(driver)
    one = replace(job(20), key=KEY._replace(width=62))
    with pytest.raises(VideoError, match=r"clip-20 decodes to 64x48, its dataset says 62x48"):
        lane.decode_all([job(10), one, job(30)])
    lane.session.close()


def test_a_stream_that_changes_its_size_within_a_job_is_refused(driver: StandIn) -> None:
    lane, other = Lane(driver), Coded(width=32, coded_width=32)
    one = job(5)
    packets = list(one.packets)
    packets[4] = other.packet(seed=9, order=4, key=False)
    one = replace(one, packets=Packets.of(packets))
    with pytest.raises(VideoError, match="decodes to 32x48"):
        lane.decode(1, one)
    lane.session.close()


def test_a_session_can_be_stopped_by_another_thread_and_closed(driver: StandIn) -> None:
    lane, error = Lane(driver), []

    def work() -> None:
        try:
            for number in range(1, 1_000_000):
                lane.decode(number, job(number, wanted=[]))
        except RuntimeError as failed:
            error.append(str(failed))

    thread = threading.Thread(target=work)
    thread.start()
    lane.session.stop()
    thread.join(60)
    assert error == ["the session was given up"]
    lane.session.close()
    lane.session.close()
    lane.session.stop()


def test_a_session_is_opened_for_the_largest_size_of_its_class() -> None:
    seen = [KEY._replace(width=640), KEY._replace(height=720), KEY._replace(width=3840), KEY._replace(codec="hevc")]
    assert largest(KEY, seen) == KEY._replace(width=640, height=720)
    assert largest(seen[2], seen) == seen[2]
    for codec in ("vp9", "mpeg4"):
        one = KEY._replace(codec=codec)
        assert largest(one, [one._replace(width=640)]) == one, "it is not set to another size"


def test_the_chip_says_what_it_decodes(driver: StandIn) -> None:
    caps = driver.library.caps(0, "hevc", 10)
    assert (caps.supported, caps.engines, caps.max_width) == (True, 7, 4096)
    assert not driver.library.caps(0, "hevc", 12).supported
    with pytest.raises(RuntimeError, match="cuDeviceGet"):
        driver.library.caps(3, "h264")


def test_a_driver_that_is_not_there_is_said(driver: StandIn) -> None:
    assert driver.library.calls.nvdec_load(b"nowhere.so", b"nowhere.so") is None, "it is loaded once"
    with pytest.raises(OSError, match=r"nowhere\.so"):
        NvdecLibrary(driver.another_module(), "nowhere.so", "nowhere.so")


def test_a_module_of_another_version_or_none_is_not_used(
    driver: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    source = (
        (SOURCES / "nvdec.c")
        .read_text()
        .replace("return 8;\n}\n\n/* Open the driver", "return 0;\n}\n\n/* Open the driver")
    )
    (tmp_path / "old.c").write_text(source)
    old = compile_c([tmp_path / "old.c"], tmp_path / "nvdec.so", "-shared", "-fPIC", f"-I{SOURCES}")
    for built, said in (([old], "built for another version"), ([], "without a C compiler")):
        monkeypatch.setattr(nvdec_library, "built_modules", lambda built=built: built)
        nvdec_library.native_library.cache_clear()
        assert nvdec_library.native_library() is None
        assert said in caplog.text
    nvdec_library.native_library.cache_clear()
