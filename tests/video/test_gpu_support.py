"""The table of what a GPU decodes, and packing by it: after `pack --for gpu` nothing is left that a GPU run refuses."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from streamvid.dataset.dataset import Dataset
from streamvid.decode.cpu import decode_with_pyav
from streamvid.errors import InputError
from streamvid.loader import preflight
from streamvid.loader.preflight import cpu_decoded_clips
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from streamvid.packing.prepare import transcode_if_needed
from streamvid.video.gpu_support import Purpose, Route, check, check_transcode, support
from streamvid.video.remux import store_clip
from streamvid.video.transcode import TranscodeOptions
from tests.support.clips import hard_clips, write
from tests.support.reference import whole
from tests.support.remux import remuxing
from tools.clips import Recipe, read_frame_number

HARD = hard_clips()
Rows = dict[str, dict[str, object]]
"""Of a dataset, by key."""
TRANSCODED = {
    "h264_10bit": "h264",
    "h264_422_10bit": "h264",
    "h264_444_odd": "h264",
    "h264_open_gop_from_recovery": "h264",
    "hevc_422_10bit": "hevc",
    "hevc_444": "hevc",
    "vp8_odd": "h264",
    "vp9_444": "vp9",
    "vp9_odd": "h264",
}
AV1 = {"av1": "h264", "av1_webm": "h264", "av1_10bit": "hevc"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for name, recipe in HARD.items():
        write(recipe, folder / f"{name}.{recipe.container}")
    return folder


def packed(sources: list[Path], destination: Path, suits: Purpose) -> Rows:
    """Key → row."""
    report = pack(sources, destination, options=PackOptions(compatible_with=suits), workers=2, progress=False)
    assert not report.rejected
    rows = [
        row for path in sorted((destination / "shards").glob("*.parquet")) for row in pq.read_table(path).to_pylist()
    ]
    return {row["key"]: row for row in rows}


TABLE: list[tuple[str, str, int, int, dict[str, object], Route]] = [
    ("h264", "yuv420p", 1920, 1080, {}, Route.NVDEC),
    ("h264", "yuvj420p", 640, 360, {}, Route.NVDEC),
    ("hevc", "yuv420p", 1280, 720, {}, Route.NVDEC),
    ("hevc", "yuv420p10le", 1280, 720, {}, Route.NVDEC),
    ("hevc", "yuv420p10le", 1280, 718, {}, Route.NVDEC),
    ("hevc", "yuv420p", 640, 360, {"all_intra": True}, Route.NVDEC),
    ("vp8", "yuv420p", 640, 360, {}, Route.NVDEC),
    ("vp9", "yuv420p", 640, 360, {}, Route.NVDEC),
    ("vp9", "yuv420p10le", 640, 360, {}, Route.NVDEC),
    ("vp9", "yuv420p12le", 640, 360, {}, Route.NVDEC),
    ("vp9", "yuv420p", 641, 361, {}, Route.NVDEC),
    ("mpeg4", "yuv420p", 640, 360, {}, Route.NVDEC),
    ("av1", "yuv420p", 640, 360, {}, Route.DALI),
    ("av1", "yuv420p10le", 640, 360, {}, Route.DALI),
    ("av1", "yuv420p", 640, 360, {"has_av1": False}, Route.CPU),
    ("mjpeg", "yuvj422p", 33, 17, {}, Route.CPU),
    ("h264", "yuv420p", 640, 360, {"traits": "unordered"}, Route.CPU),
    ("h264", "yuv422p", 641, 360, {"traits": "lead-in,unordered", "all_intra": True}, Route.CPU),
    ("h264", "yuv420p10le", 640, 360, {}, Route.CPU),
    ("h264", "yuv420p", 640, 360, {"all_intra": True}, Route.NVDEC),
    ("h264", "yuv420p", 640, 360, {"traits": "lead-in"}, Route.CPU),
    ("mpeg4", "yuv420p", 640, 360, {"traits": "lead-in"}, Route.NVDEC),
    ("vp9", "yuv420p", 640, 360, {"traits": "show-existing"}, Route.CPU),
    ("vp9", "yuv420p", 640, 360, {"traits": "superframes"}, Route.NVDEC),
    ("av1", "yuv420p", 640, 360, {"traits": "non-displayed"}, Route.CPU),
    ("hevc", "yuv422p10le", 640, 360, {}, Route.CPU),
    ("hevc", "yuv420p12le", 640, 360, {}, Route.NVDEC),
    ("vp9", "yuv444p", 640, 360, {}, Route.CPU),
    ("h264", "gray", 640, 360, {}, Route.CPU),
    ("vp8", "yuv420p", 131, 97, {}, Route.CPU),
    ("mpeg4", "yuv420p", 640, 361, {}, Route.NVDEC),
    ("h264", "yuv420p", 48, 16, {}, Route.NVDEC),
    ("h264", "yuv420p", 46, 16, {}, Route.CPU),
    ("h264", "yuv420p", 4098, 64, {}, Route.CPU),
    ("hevc", "yuv420p", 8192, 144, {}, Route.NVDEC),
    ("hevc", "yuv420p", 640, 142, {}, Route.CPU),
    ("vp9", "yuv420p", 126, 128, {}, Route.CPU),
    ("mpeg4", "yuv420p", 48, 16, {}, Route.NVDEC),
    ("mpeg4", "yuv420p", 16, 16, {}, Route.CPU),
    ("mpeg4", "yuv420p", 2048, 1024, {}, Route.NVDEC),
    ("mpeg4", "yuv420p", 2048, 1040, {}, Route.CPU),
    ("theora", "yuv420p", 640, 360, {}, Route.CPU),
]  # fmt: skip


@pytest.mark.parametrize(("codec", "pix_fmt", "width", "height", "more", "route"), TABLE)
def test_clips_have_the_routes_of_the_table(
    codec: str, pix_fmt: str, width: int, height: int, more: dict[str, Any], route: Route
) -> None:
    row = support(codec, pix_fmt, width, height, **more)
    assert row.route is route
    # Packing transcodes what has a reason: all that a GPU does not decode.
    assert bool(row.reason) == (route is Route.CPU)


@pytest.fixture(scope="module")
def copied(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """The hard clips as they were."""
    folder = tmp_path_factory.mktemp("copied") / "ds"
    rows = packed([*sources.iterdir()], folder, "any")
    assert {name: row["codec"] for name, row in rows.items()} == {name: HARD[name].codec for name in rows}
    assert len(cpu_decoded_clips(Dataset.open(folder))) > 5
    return rows


# Of the clips that have nothing to do with AV1 one of each kind is enough the second time.
@pytest.mark.parametrize(
    ("suits", "names"), [("gpu", [*HARD]), ("gpu-no-av1", [*AV1, "h264", "h264_interlaced", "h264_10bit", "mjpeg_avi"])]
)
def test_afterwards_a_gpu_decodes_all_but_motion_jpeg_and_fields(
    sources: Path, copied: Rows, suits: Purpose, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "built_modules", lambda: [tmp_path] if suits == "gpu" else [])
    rows = packed([path for path in sources.iterdir() if path.stem in names], tmp_path / "dataset", suits)
    # Motion JPEG is kept: another codec would be a lossy copy, and cores decode it well. So is what is coded in fields.
    left = {(what.split()[0], why) for what, why, _ in cpu_decoded_clips(Dataset.open(tmp_path / "dataset"))}
    fields = "PyNvVideoCodec deinterlaces pictures that are coded in fields; the native module would not"
    of_python = set() if suits == "gpu" else {("h264", fields)}
    assert left == {("mjpeg", "a core decodes Motion JPEG faster than the one engine for it")} | of_python
    # Which packets libvpx makes of hidden frames depends on how fast it ran: see the test of them below.
    rows.pop("vp9_hidden_frames", None)
    changed = {name: row["codec"] for name, row in rows.items() if row["sha256"] != copied[name]["sha256"]}
    expected = TRANSCODED | AV1 if suits == "gpu-no-av1" else TRANSCODED
    assert changed == {name: codec for name, codec in expected.items() if name in names}
    for name, row in rows.items():
        assert row["frames"] == len(HARD[name].shown())
        assert row["rotation"] == HARD[name].rotation


@pytest.mark.parametrize(
    ("recipe", "purpose", "problem", "codec"),
    [
        (Recipe(), "gpu", "", None),
        (Recipe(codec="av1"), "gpu", "", None),
        (Recipe(codec="av1"), "gpu-no-av1", "no AV1 decoder", "h264"),
        (Recipe(codec="av1"), "any", "no AV1 decoder", None),
        (Recipe(gop=1, b_frames=0), "gpu", "", None),
        (Recipe(codec="mjpeg"), "gpu-no-av1", "Motion JPEG", None),
        (Recipe(codec="hevc", width=128, height=64), "gpu", "from 144x144", "h264"),
        (Recipe(codec="vp9", width=64, height=64), "gpu", "from 128x128", "h264"),
        (Recipe(width=1920, height=1080, frames=2), "gpu", "", None),
    ],
)
def test_the_remedy_of_each_unsupported_clip(
    recipe: Recipe, purpose: Purpose, problem: str, codec: str | None, tmp_path: Path
) -> None:
    recipe = replace(recipe, frames=min(recipe.frames, 4))
    clip = store_clip(write(recipe, tmp_path / "a.mp4"), tmp_path)
    found, target = check(clip, purpose)
    assert problem in found
    assert bool(problem) == bool(found)
    assert target == codec


def test_what_the_cpu_would_decode_is_transcoded(tmp_path: Path) -> None:
    clip = store_clip(write(Recipe(frames=4, width=96, height=64), tmp_path / "a.mp4"), tmp_path)
    problem, target = check(replace(clip, traits="unordered"), "gpu")
    assert "order" in problem
    assert target == "h264"


def test_vp9_that_shows_a_hidden_frame_is_transcoded(tmp_path: Path) -> None:
    """A packet of one byte, 0x88, shows again what lies in the first of the decoder's eight slots."""
    recipe = Recipe(codec="vp9", container="webm", width=160, height=128, frames=12)
    with remuxing(write(recipe, tmp_path / "plain.webm"), tmp_path / "a.mkv") as copy:
        for number, packet in enumerate([*copy.packets[:6], av.Packet(b"\x88"), *copy.packets[6:]]):
            packet.pts = packet.dts = 33 * number
            packet.time_base = Fraction(1, 1000)
            copy.mux(packet)
    clip = store_clip(tmp_path / "a.mkv", tmp_path)
    assert clip.traits == "show-existing"
    before = decode_with_pyav(whole(clip))
    assert [read_frame_number(frame) for frame in before] == [*range(6), 5, *range(6, 12)]
    after = transcode_if_needed(clip, tmp_path / "out", PackOptions())
    assert (after.codec, after.traits) == ("vp9", "")
    frames = decode_with_pyav(whole(after))
    assert [read_frame_number(frame) for frame in frames] == [*range(6), 5, *range(6, 12)]
    assert np.abs(frames.astype(int) - before).mean() < 3


def test_large_frames_go_where_they_fit(tmp_path: Path) -> None:
    clip = store_clip(write(Recipe(frames=2), tmp_path / "a.mp4"), tmp_path)
    assert check(replace(clip, width=5120, height=2880), "gpu")[1] == "hevc"
    for width, height in [(10240, 5760), (32, 64)]:
        problem, target = check(replace(clip, width=width, height=height), "gpu")
        assert problem
        assert target is None


def test_transcoding_keeps_the_rotation(tmp_path: Path) -> None:
    """Rotation is carried: the same column, and the same pixels before it is applied."""
    (tmp_path / "in").mkdir()
    base = Recipe(width=160, height=96, frames=4, rotation=90, container="mov")
    write(base, tmp_path / "in/copied.mov")
    write(replace(base, pix_fmt="yuv422p"), tmp_path / "in/converted.mov")
    rows = packed(tmp_path / "in", tmp_path / "out", "gpu")
    assert {row["pix_fmt"] for row in rows.values()} == {"yuv420p"}
    assert {row["rotation"] for row in rows.values()} == {90}
    pictures = []
    for name in ("copied", "converted"):
        (tmp_path / name).mkdir()
        data = (tmp_path / "out/shards/00000000.tar").read_bytes()
        at, size = rows[name]["mp4_offset"], rows[name]["mp4_size"]
        assert isinstance(at, int)
        assert isinstance(size, int)
        (tmp_path / name / "a.mp4").write_bytes(data[at : at + size])
        clip = store_clip(tmp_path / name / "a.mp4", tmp_path / name)
        pictures.append(decode_with_pyav(whole(clip)))
        assert [read_frame_number(frame) for frame in pictures[-1]] == [0, 1, 2, 3]
    assert np.abs(pictures[0].astype(int) - pictures[1]).mean() < 4


def test_all_are_transcoded_on_request(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(Recipe(width=640, height=360, frames=6), tmp_path / "in/a.mp4")
    write(Recipe(codec="vp9", width=320, height=640, frames=6), tmp_path / "in/b.mp4")
    options = PackOptions(transcode=TranscodeOptions("hevc", short_side=160, gop=3))
    runs = [tmp_path / "one", tmp_path / "two"]
    for workers, run in enumerate(runs, 1):
        pack([tmp_path / "in"], run, name="x", options=options, workers=workers, progress=False)
    rows = pq.read_table(runs[0] / "shards/00000000.parquet").to_pylist()
    assert [(row["codec"], row["width"], row["height"], row["random_access"]) for row in rows] == [
        ("hevc", 284, 160, 2),
        ("hevc", 160, 320, 2),
    ]
    first, second = ((run / "shards/00000000.tar").read_bytes() for run in runs)
    assert first == second, "the same bytes with one worker and with two"


def test_targets_that_defeat_the_purpose_are_refused() -> None:
    with pytest.raises(InputError, match="choose another codec"):
        check_transcode(TranscodeOptions("av1"), "gpu-no-av1")
    check_transcode(TranscodeOptions("h264", gop=1), "gpu")
    check_transcode(TranscodeOptions("av1"), "gpu")
