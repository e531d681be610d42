"""HEVC of which FFmpeg makes other samples than the encoder: recognised by parameter sets, and still so in FFmpeg."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import av
import pytest

from streamvid.bitstream.ffmpeg_fault import ffmpeg_is_exact
from streamvid.decode.session_key import session_key
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import INEXACT
from streamvid.video.transcode import TranscodeOptions
from tests.support.clips import write
from tools.clips import Recipe

HEVC = Recipe(codec="hevc", container="mkv", width=208, height=160, frames=6, gop=6, b_frames=0, seed=3, scene=2)
SPLIT = {"rd": "4", "tu-intra-depth": "4"}
SAO = {"rd": "4", "tu-intra-depth": "3", "rect": "1", "sao": "1"}


def _coded(params: dict[str, str], folder: Path, *, crf: int, pix_fmt: str) -> Path:
    hashed = (*params.items(), ("hash", "1"))
    return write(replace(HEVC, params=hashed, crf=crf, pix_fmt=pix_fmt), folder / "a.mkv")


def _exact(path: Path, folder: Path) -> bool:
    """Whether cores may decode it beside engines."""
    clip = store_clip(path, folder)
    return session_key("hevc", clip.stsd, clip.width, clip.height)[0].exact


def _differs(path: Path) -> bool:
    """Whether FFmpeg's samples of any picture have another MD5 than the stream states (decoded picture hash SEI)."""
    with av.open(str(path)) as container:
        context = container.streams.video[0].codec_context
        context.options = {"err_detect": "crccheck+explode"}
        try:
            for packet in container.demux(video=0):
                context.decode(packet)
        except av.error.InvalidDataError:
            return True
    return False


@pytest.mark.parametrize(
    ("params", "crf", "pix_fmt"),
    [
        pytest.param({**SAO, "ctu": "16", "tskip": "1", "crqpoffs": "6"}, 10, "yuv420p", id="small-tree-blocks"),
        pytest.param({**SAO, "cu-lossless": "1"}, 10, "yuv420p", id="lossless"),
        pytest.param({**SPLIT, "constrained-intra": "1", "min-cu-size": "16"}, 20, "yuv420p", id="constrained"),
        pytest.param({"qp": "51"}, 40, "yuv420p12le", id="12-bit"),
    ],
)
def test_samples_differ_where_the_parameter_sets_say_so(
    params: dict[str, str], crf: int, pix_fmt: str, tmp_path: Path
) -> None:
    path = _coded(params, tmp_path, crf=crf, pix_fmt=pix_fmt)
    assert _differs(path), "FFmpeg decodes it rightly: ffmpeg_fault need not know it any more"
    assert not _exact(path, tmp_path)


def test_high_chroma_offsets(tmp_path: Path) -> None:
    """Of which x265 makes what FFmpeg makes; NVDEC and libde265 do not."""
    params = {"qp": "51", "deblock": "-6,6", "crqpoffs": "7"}
    assert not _exact(_coded(params, tmp_path, crf=40, pix_fmt="yuv420p"), tmp_path)


@pytest.mark.parametrize(
    ("params", "pix_fmt"),
    [
        pytest.param({}, "yuv420p", id="usual"),
        pytest.param({}, "yuv420p10le", id="10-bit"),
        pytest.param({**SAO, "scaling-list": "default"}, "yuv420p", id="sao"),
        pytest.param({"rd": "4", "ctu": "16", "sao": "0"}, "yuv420p", id="small-tree-blocks-without-sao"),
        pytest.param({**SPLIT, "min-cu-size": "16", "cbqpoffs": "6", "crqpoffs": "-12"}, "yuv420p", id="offsets"),
    ],
)
def test_all_others_are_exact(params: dict[str, str], pix_fmt: str, tmp_path: Path) -> None:
    path = _coded(params, tmp_path, crf=20, pix_fmt=pix_fmt)
    assert not _differs(path)
    assert _exact(path, tmp_path)


@pytest.mark.parametrize("options", [PackOptions("any"), PackOptions(transcode=TranscodeOptions())])
def test_packing_says_of_how_many_videos_ffmpeg_makes_other_samples(options: PackOptions, tmp_path: Path) -> None:
    """Also where the transcoded video is of another codec."""
    (tmp_path / "v").mkdir()
    for name in ("a.mkv", "b.mkv"):
        write(replace(HEVC, params=(("constrained-intra", "1"),)), tmp_path / "v" / name)
    write(replace(HEVC, width=128), tmp_path / "v" / "c.mkv")
    report = pack(tmp_path / "v", tmp_path / "set", options=options, progress=False)
    assert [(one.text, one.videos, one.first) for one in report.notices] == [(INEXACT, 2, "a.mkv")]


def test_what_cannot_be_read_is_not_exact() -> None:
    assert not ffmpeg_is_exact("hevc", b"\0\0\0\1\x42\1\1")
    assert ffmpeg_is_exact("h264", b"")
