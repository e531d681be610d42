"""Which frames a cut gets, and what lists of cuts may say: without any video."""

from __future__ import annotations

import argparse
import itertools
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.checks import decimal
from streamvid.cli.pack import parse_length
from streamvid.errors import InputError, VideoError
from streamvid.packing.cut_list import COLUMNS, attach_cuts, check_cutting
from streamvid.packing.frame_spans import (
    FrameSpan,
    cut_spans,
    fixed_spans,
    frame_at,
    rounding,
    scene_spans,
    span_columns,
)
from streamvid.packing.labels import attach_labels
from streamvid.packing.metadata import MetadataLists
from streamvid.packing.options import Cut, FixedLength, PackOptions, RejectedCut, Scenes, TailPolicy
from streamvid.packing.source_video import SourceVideo
from streamvid.video.frame_index import FrameIndex
from streamvid.video.stored_clip import StoredClip
from streamvid.video.transcode import TranscodeOptions


def clip(pts: list[int], duration: int, time_base: tuple[int, int] = (1, 1000)) -> StoredClip:
    """A clip without a file."""
    ones = np.ones(len(pts), dtype=np.int64)
    index = FrameIndex(np.array(pts, dtype=np.int64), np.arange(len(pts)), ones, ones)
    return StoredClip(
        Path("none"), index, "h264", "", "yuv420p", "bt709", "tv", "", 64, 64, 0, time_base, duration, b""
    )


def ranges(spans: list[FrameSpan] | list[FrameSpan | RejectedCut]) -> list[tuple[int, int]]:
    return [(span.first, span.end) for span in spans if isinstance(span, FrameSpan)]


NTSC = clip([1001 * n for n in range(300)], 300 * 1001, (1, 30000))  # 10.01 s
STEADY = clip([40 * n for n in range(100)], 4000)

steps = st.lists(st.integers(1, 3000), min_size=1, max_size=60)
times = st.floats(0, 70, allow_nan=False).map(lambda t: round(t, 4))


@given(steps, st.lists(times, min_size=1, max_size=6), st.sampled_from([(1, 1000), (1, 30000), (1001, 30000)]))
def test_cuts_that_meet_neither_lose_nor_share_a_frame(
    gaps: list[int], points: list[float], base: tuple[int, int]
) -> None:
    pts = [0, *np.cumsum(gaps).tolist()]
    video = clip(pts, pts[-1] + gaps[-1], base)
    edges: list[float | None] = [0, *sorted(points), None]
    cuts = [Cut(start or 0, end) for start, end in itertools.pairwise(edges) if start != end]
    got = ranges(cut_spans(video, cuts))
    assert [n for first, end in got for n in range(first, end)] == list(range(len(pts)))
    # And each frame is where its time says.
    for span in cut_spans(video, cuts):
        if isinstance(span, FrameSpan) and span.cut is not None:
            for n in range(span.first, span.end):
                time = Fraction(pts[n] * base[0], base[1]) + rounding(video)
                assert decimal(span.cut.start) <= time
                assert span.cut.end is None or time < decimal(span.cut.end)


@given(steps, st.floats(0.001, 20).map(lambda t: round(t, 3)), st.sampled_from(["keep", "drop", "merge"]))
def test_fixed_lengths_tile_the_video(gaps: list[int], length: float, tail: TailPolicy) -> None:
    pts = [0, *np.cumsum(gaps).tolist()]
    video = clip(pts, pts[-1] + gaps[-1])
    try:
        got = ranges(fixed_spans(video, FixedLength(length, tail=tail)))
    except VideoError:
        assert tail == "drop"
        return
    frames = [n for first, end in got for n in range(first, end)]
    assert frames == list(range(len(frames)))
    assert tail == "drop" or len(frames) == len(pts)
    # The same clips as a list of them would give, but for a merged tail.
    number = int(decimal(pts[-1] / 1000) / decimal(length)) + 2
    if number < 500 and tail == "keep":
        listed = [Cut(float(decimal(length) * k), float(decimal(length) * (k + 1))) for k in range(number)]
        assert got == ranges(cut_spans(video, listed))


def test_short_tails() -> None:
    def of(length: float, tail: TailPolicy) -> list[tuple[int, int]]:
        return ranges(fixed_spans(STEADY, FixedLength(length, tail=tail)))

    assert of(1.5, "keep") == [(0, 38), (38, 75), (75, 100)]
    assert of(1.5, "drop") == [(0, 38), (38, 75)]
    assert of(1.5, "merge") == [(0, 38), (38, 100)]
    assert of(2, "drop") == [(0, 50), (50, 100)]
    assert of(9, "merge") == [(0, 100)]
    with pytest.raises(VideoError, match="shorter than a clip of 9 seconds"):
        of(9, "drop")
    # What lacks less than a frame is whole.
    assert of(2.01, "drop") == [(0, 51), (51, 100)]
    assert of(2.03, "drop") == [(0, 51)]
    assert ranges(fixed_spans(NTSC, FixedLength(10, tail="drop"))) == [(0, 300)]
    assert ranges(fixed_spans(STEADY, FixedLength(30, "frames", "merge"))) == [(0, 30), (30, 60), (60, 100)]
    assert ranges(fixed_spans(STEADY, FixedLength(30, "frames", "drop"))) == [(0, 30), (30, 60), (60, 90)]
    assert ranges(fixed_spans(STEADY, FixedLength(50, "frames", "drop"))) == [(0, 50), (50, 100)]


def test_times_that_lists_have_rounded() -> None:
    """Frame 10 of 29.97 a second is at 0.333667 s."""
    for written in (0.3336, 0.333, 0.33367, 0.334, float(Fraction(10010, 30000))):
        assert frame_at(NTSC, decimal(written)) == 10
    assert frame_at(NTSC, decimal(0.335)) == 11
    assert frame_at(NTSC, decimal(0.3003)) == 9
    assert frame_at(NTSC, decimal(99.0)) == 300
    quicktime = clip([int(20.02 * n + 0.5) for n in range(300)], 6006, (1, 600))
    assert [frame_at(quicktime, Fraction(1001 * n, 30000)) for n in range(300)] == list(range(300))
    gif = clip([0, 3, 7, 10], 13, (1, 100))
    assert [frame_at(gif, Fraction(n, 30)) for n in range(4)] == [0, 1, 2, 3]
    assert frame_at(clip([0, 512, 1024], 1536, (1, 12800)), decimal(0.0406)) == 2
    # A sum of floats is not what was meant.
    assert frame_at(STEADY, decimal(0.1 + 0.02)) == 3


def test_cuts_that_the_video_cannot_give() -> None:
    found = cut_spans(STEADY, [Cut(3.9, 5), Cut(4, 5), Cut(0.001, 0.002), Cut(1, 1.5), Cut(2, None)])
    assert ranges(found) == [(25, 38), (50, 100), (98, 100)]
    reasons = [one.reason for one in found if isinstance(one, RejectedCut)]
    assert len(reasons) == 2
    assert "begins after the last frame" in reasons[0]
    assert "4 s" in reasons[0]
    assert "holds no frame" in reasons[1]
    found = cut_spans(STEADY, [Cut(90, 120, "frames"), Cut(100, 120, "frames"), Cut(99, None, "frames")])
    assert ranges(found) == [(90, 100), (99, 100)]
    assert [one.reason for one in found if isinstance(one, RejectedCut)] == [
        "the cut from 100 to 120 (frames) begins after the last frame of the video, which has 100 frames"
    ]


def test_scenes_and_where_clips_were() -> None:
    assert ranges(scene_spans(STEADY, [])) == [(0, 100)]
    assert ranges(scene_spans(STEADY, [0, 40, 70])) == [(0, 40), (40, 70), (70, 100)]
    assert span_columns(STEADY, FrameSpan(40, 70)) == {"start": 1.6, "end": 2.8, "start_frame": 40, "end_frame": 70}
    assert span_columns(STEADY, FrameSpan(99, 100))["end"] == 4.0


SOURCES = [
    SourceVideo(f"/v/{name}", name, name.split(".")[0].replace("/", "_")) for name in ("a/one.mp4", "b.mp4", "c.mkv")
]


def listed(tmp_path: Path, text: str, name: str = "cuts.csv") -> list[SourceVideo]:
    (tmp_path / name).write_text(text)
    return attach_cuts(SOURCES, str(tmp_path / name), MetadataLists())[0]


def columns_of(sources: list[SourceVideo], lists: MetadataLists) -> list[list[str]]:
    return [[lists.json(*cut.rows) for cut in source.cuts or ()] for source in sources]


def test_cuts_and_columns_of_lists(tmp_path: Path) -> None:
    (tmp_path / "cuts.csv").write_text(
        "video,start,end,label,note\nc,3,4.5,run,x\na/one.mp4,0.5,1.5,jump,\none.mp4,0,00:01:02.5,,y\nc.mkv,1,,run,z\n"
    )
    lists = MetadataLists()
    (one, three), _ = attach_cuts(SOURCES, str(tmp_path / "cuts.csv"), lists)
    assert (one.name, three.name) == ("a/one.mp4", "c.mkv")
    assert one.cuts == (Cut(0, 62.5, label=None, rows=(2,)), Cut(0.5, 1.5, label="jump", rows=(1,)))
    assert three.cuts == (Cut(1, None, label="run", rows=(3,)), Cut(3, 4.5, label="run", rows=(0,)))
    assert columns_of([one, three], lists) == [['{"note":"y"}', '{"note":""}'], ['{"note":"z"}', '{"note":"x"}']]
    (two,) = listed(tmp_path, '{"key": "b", "start_frame": 5, "end_frame": 9, "rank": 2}\n', "cuts.jsonl")
    assert two.cuts == (Cut(5, 9, "frames", rows=(0,)),)
    table = pa.table({"path": ["b.mp4", "b.mp4"], "start": [1.0, 0.5], "end": [2.0, float("nan")], "label": [3, 4]})
    pq.write_table(table, tmp_path / "cuts.parquet")
    (two,), left_out = attach_cuts(SOURCES, str(tmp_path / "cuts.parquet"), MetadataLists())
    assert two.cuts == (Cut(0.5, None, label=4, rows=(1,)), Cut(1.0, 2.0, label=3, rows=(0,)))
    assert left_out == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("video,start,end\nb,2,1\n", "row 1 .* from 2 to 1 .*must come after"),
        ("video,start,end\nb,2,2\n", "must come after"),
        ("video,start,end\nb,-1,2\n", "write seconds from 0"),
        ("video,start,end\nb,soon,2\n", "'soon' in the column 'start'"),
        ("video,start,end\nb,1,2\nb,,2\n", "row 2 .* has nothing in the column 'start'"),
        ("video,start,end\nb,1,inf\n", "'inf' in the column 'end'"),
        ("video,start_frame,end_frame\nb,1.5,2\n", "a frame number"),
        ("video,start,end\nnone.mp4,1,2\nb,1,2\nother,1,2\n", "'none.mp4' and 1 more, not among the 3 videos"),
        ("video,start\nb,1\n", "no columns 'start' and 'end'"),
        ("video,start,end,start_frame,end_frame\nb,1,2,3,4\n", "both in seconds and in frames"),
        ("start,end\n1,2\n", "no column 'path' or 'video' or 'key'"),
        ("video,start,end\n", "lists no cuts"),
        ("video,start,end,source\nb,1,2,x\n", "'source', a name that packing itself uses"),
    ],
)
def test_bad_lists_are_refused_at_the_start(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        listed(tmp_path, text)


def test_columns(tmp_path: Path) -> None:
    (tmp_path / "cuts.csv").write_text("video,start,end,rank\nb,1,2,3\n")
    (tmp_path / "labels.csv").write_text("video,label,caption\nb,1,x\n")
    (tmp_path / "bad.csv").write_text("video,label,end\nb,1,x\n")
    lists = MetadataLists()
    attach_labels(SOURCES, str(tmp_path / "labels.csv"), lists)
    attach_cuts(SOURCES, str(tmp_path / "cuts.csv"), lists)
    schema = lists.finish(COLUMNS).schema
    assert schema.names == [*COLUMNS.names, "caption", "rank"]
    assert schema.field("start").type == pa.float64()
    attach_labels(SOURCES, str(tmp_path / "bad.csv"), lists)
    with pytest.raises(InputError, match="a column 'end'"):
        lists.finish(COLUMNS)


def test_lengths_are_parsed() -> None:
    assert parse_length("10s") == (10, "seconds")
    assert parse_length("2.5") == (2.5, "seconds")
    assert parse_length("300 ms") == (0.3, "seconds")
    assert parse_length("2m") == (120, "seconds")
    assert parse_length("64f") == (64, "frames")
    for bad in ("", "0", "-1s", "1.5f", "s", "10 parsecs", "9" * 400 + "f"):
        with pytest.raises(argparse.ArgumentTypeError):
            parse_length(bad)
    check_cutting(PackOptions(cutting=FixedLength(1.5)), listed=False)
    for options, also_listed in (
        (PackOptions(cutting=FixedLength(0)), False),
        (PackOptions(cutting=FixedLength(1.5, "frames")), False),
        (PackOptions(cutting=Scenes(-1)), False),
        (PackOptions(cutting=Scenes()), True),
        (PackOptions(exact_cuts=True), False),
    ):
        with pytest.raises(InputError):
            check_cutting(options, listed=also_listed)


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (FixedLength, {"length": 500, "unit": "ms"}),
        (FixedLength, {"length": 5, "tail": "cut"}),
        (PackOptions, {"compatible_with": "cpu"}),
        (PackOptions, {"cutting": 10}),
        (PackOptions, {"exact_cuts": "no"}),
        (PackOptions, {"transcode": "hevc"}),
        (TranscodeOptions, {"short_side": "720"}),
        (TranscodeOptions, {"max_fps": "30"}),
    ],
)
def test_options_of_another_kind_are_refused(make: type, given: dict[str, object]) -> None:
    with pytest.raises(InputError, match=f"{list(given)[-1]}\\) must be .* it is "):
        make(**given)


@pytest.mark.parametrize("rule", [FixedLength("10s"), FixedLength(-1), Scenes("1s"), Scenes(True)])  # type: ignore[arg-type]
def test_invalid_lengths_are_refused(rule: FixedLength | Scenes) -> None:
    with pytest.raises(InputError, match=r"give a positive number|give 0 or more"):
        check_cutting(PackOptions(cutting=rule), listed=False)
