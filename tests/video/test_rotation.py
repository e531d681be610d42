"""How videos are to be shown: the eight ways that a display matrix says, through all ways in which clips are made and
loaded, held against the filters that FFmpeg itself inserts."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
import torch

import streamvid as sv
from streamvid.decode.cpu import decode_with_pyav
from streamvid.errors import VideoError
from streamvid.mp4.boxes import ROTATIONS, find_box
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from streamvid.video.remux import remux_with_ffmpeg, store_clip
from streamvid.video.transcode import TranscodeOptions, transcode
from streamvid.video.trim import trim_clip
from tests.support.clips import write
from tests.support.reference import to_rgb, whole
from tools.clips import Recipe

Frames = list[npt.NDArray[np.uint8]]
RECIPE = Recipe(width=96, height=64, frames=4, gop=2, b_frames=0, number=False)
MATRICES = {
    0: (1, 0, 0, 1),
    90: (0, 1, -1, 0),
    180: (-1, 0, 0, -1),
    270: (0, -1, 1, 0),
    360: (-1, 0, 0, 1),
    450: (0, -1, -1, 0),
    540: (1, 0, 0, -1),
    630: (0, 1, 1, 0),
}


def with_matrix(path: Path, a: float, b: float, c: float, d: float) -> Path:
    """The video with another display matrix in its track header (ISO/IEC 14496-12, 8.3.2)."""
    write(RECIPE, path)
    data = bytearray(path.read_bytes())
    found = find_box(data, b"tkhd")
    assert found is not None
    fixed = [round(value * (1 << 16)) for value in (a, b, 0, c, d, 0, 0, 0)]
    struct.pack_into(">9i", data, found[0] + (52 if data[found[0]] else 40), *fixed, 1 << 30)
    path.write_bytes(data)
    return path


def shown_by_ffmpeg(path: Path) -> Frames:
    """The frames after the filters that ffmpeg inserts for the matrix (fftools/ffmpeg_filter.c, `autorotate`)."""
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    side: Any = frames[0].side_data.get(av.sidedata.sidedata.Type.DISPLAYMATRIX)
    if side is None:
        return [to_rgb(frame, full_range=False) for frame in frames]
    matrix = struct.unpack("=9i", bytes(side))
    match -frames[0].rotation % 360:
        case 90:
            chain = [("transpose", "cclock_flip" if matrix[3] > 0 else "clock")]
        case 180:
            chain = [("hflip", None)] * (matrix[0] < 0) + [("vflip", None)] * (matrix[4] < 0)
        case 270:
            chain = [("transpose", "clock_flip" if matrix[3] < 0 else "cclock")]
        case _:
            chain = [("vflip", None)] * (matrix[4] < 0)
    graph = av.filter.Graph()
    last = graph.add_buffer(width=96, height=64, format=av.VideoFormat("gbrp"), time_base=frames[0].time_base)
    for name, options in [*chain, ("buffersink", None)]:
        node = graph.add(name, options)
        last.link_to(node)
        last = node
    graph.configure()
    shown = []
    for frame in frames:
        picture = av.VideoFrame.from_ndarray(to_rgb(frame, full_range=False), format="rgb24").reformat(format="gbrp")
        graph.push(picture)
        shown.append(graph.pull().to_ndarray(format="rgb24"))  # type: ignore[union-attr]
    return shown


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for rotation, matrix in MATRICES.items():
        with_matrix(folder / f"r{rotation}.mp4", *matrix)
    return folder


@pytest.mark.parametrize("rotation", ROTATIONS)
def test_all_eight_are_recorded(rotation: int, sources: Path, tmp_path: Path) -> None:
    source = sources / f"r{rotation}.mp4"
    made = {}
    for name in ("tables", "ffmpeg", "cut", "encoded"):
        (tmp_path / name).mkdir()
    made["tables"] = store_clip(source, tmp_path / "tables")
    made["ffmpeg"] = remux_with_ffmpeg(source, tmp_path / "ffmpeg")
    made["cut"] = trim_clip(made["tables"], 1, 3, tmp_path / "cut/clip.mp4")
    transcode(made["tables"], tmp_path / "encoded.mp4", TranscodeOptions("mjpeg"))
    made["encoded"] = store_clip(tmp_path / "encoded.mp4", tmp_path / "encoded")
    assert {name: clip.rotation for name, clip in made.items()} == dict.fromkeys(made, rotation)
    for clip in made.values():
        # Players find the same in the stored MP4.
        assert [frame.shape for frame in shown_by_ffmpeg(clip.mp4)] == [
            frame.shape for frame in shown_by_ffmpeg(source)[: len(clip.index.visible)]
        ]
    np.testing.assert_array_equal(shown_by_ffmpeg(made["tables"].mp4), shown_by_ffmpeg(source))
    np.testing.assert_array_equal(shown_by_ffmpeg(made["cut"].mp4), shown_by_ffmpeg(source)[1:3])
    assert (made["encoded"].width, made["encoded"].height) == (96, 64), "pixels are not moved"


def test_all_eight_are_shown_as_ffmpeg_shows_them(sources: Path, tmp_path: Path) -> None:
    pack([sources], tmp_path / "set", name="x", options=PackOptions("any"), workers=1, progress=False)
    dataset = sv.Dataset.open(tmp_path / "set")
    raw = sv.Transform(layout="THWC", dtype="uint8", color="bt601")
    clips = sv.ClipDataset(dataset, sampling=sv.All(), transform=raw)
    for row in range(len(dataset)):
        wanted = np.stack(shown_by_ffmpeg(sources / dataset.clips.source[row]))
        only = sv.Subset(dataset, keys=[dataset.clips.key[row]])
        got = {"random access": clips[row]["video"]}
        # With a rotation by nothing, frames go through DALI's graph.
        for name, transform in {"in place": raw, "by a graph": replace(raw, rotate=(0, 0), blur=1e-9)}.items():
            with sv.StreamLoader(
                only, sampling=sv.Frames([0, 1, 2, 3]), batch_size=1, transform=transform, device="cpu"
            ) as batches:
                (batch,) = list(batches)
            got[name] = batch["video"][0]
        for name, video in got.items():
            assert torch.equal(torch.as_tensor(video), torch.from_numpy(wanted)), (name, dataset.clips.source[row])


@pytest.mark.parametrize("matrix", [(0.866, 0.5, -0.5, 0.866), (1, 0, 0.5, 1), (-32768, 32767, 7, -9)])
def test_askew_videos_are_refused(matrix: tuple[float, float, float, float], tmp_path: Path) -> None:
    with pytest.raises(VideoError, match=r"its display matrix turns frames by -?[0-9]+ degrees, or shears them"):
        store_clip(with_matrix(tmp_path / "a.mp4", *matrix), tmp_path)


def test_a_matrix_of_zeros_is_ignored_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As FFmpeg does; PyAV makes -2147483648 degrees of it."""
    source = with_matrix(tmp_path / "garbage.mp4", 0, 0, 0, 0)
    clip = remux_with_ffmpeg(source, tmp_path)
    assert clip.rotation == 0
    assert len(decode_with_pyav(whole(clip))) == 4
    assert "garbage.mp4" in caplog.text
