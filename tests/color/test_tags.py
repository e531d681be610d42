"""Matrix, range and siting of clips, with tags or without."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from streamvid.color.full_size import FullSizeConverter
from streamvid.color.picture import picture_of
from streamvid.color.tags import AS_DALI, Color, clip_color, container_tags, settled_tags
from streamvid.decode.cpu import decode_with_pyav
from streamvid.errors import VideoError
from streamvid.video.probe import CannotCopyError, VideoFile
from streamvid.video.remux import remux_with_ffmpeg, store_clip
from streamvid.video.stored_clip import StoredClip
from streamvid.video.timed_frames import TimedFrame, TimedFrames
from streamvid.video.transcode import TranscodeOptions, encode, transcode
from tests.support.clips import one_after_the_other, without_packets
from tests.support.reference import whole
from tests.support.remux import remuxing
from tools.clips import Recipe, write

SD, HD = (640, 360), (1280, 720)


def settled(
    size: tuple[int, int] = SD,
    *,
    matrix: str = "unknown",
    primaries: str = "unknown",
    color_range: str = "unknown",
    codec: str = "h264",
    pix_fmt: str = "yuv420p",
) -> tuple[str, str]:
    return settled_tags((matrix, primaries, color_range), codec=codec, pix_fmt=pix_fmt, size=size)


def test_a_matrix_that_is_tagged() -> None:
    for size in (SD, HD):
        for name in ("bt709", "smpte170m", "bt470bg", "bt2020nc", "smpte240m", "fcc", "ycgco"):
            assert settled(size, matrix=name, primaries="bt709") == (name, "tv")


def test_without_a_matrix_the_one_of_the_primaries() -> None:
    pairs = {"bt709": "bt709", "bt2020": "bt2020nc", "smpte170m": "smpte170m", "bt470bg": "bt470bg", "bt470m": "fcc",
             "smpte240m": "smpte240m"}  # fmt: skip
    for size in (SD, HD):
        assert {one: settled(size, primaries=one)[0] for one in pairs} == pairs


def test_without_tags_by_size() -> None:
    """As mpv's mp_csp_guess_colorspace has it. Primaries that no matrix belongs to say nothing."""
    for size, matrix in {SD: "smpte170m", (720, 576): "smpte170m", (1279, 576): "smpte170m", (1280, 536): "bt709",
                         (720, 577): "bt709", (1920, 1080): "bt709", (608, 1080): "bt709"}.items():  # fmt: skip
        assert settled(size) == settled(size, primaries="smpte432") == (matrix, "tv")
        assert settled(size, codec="mjpeg", pix_fmt="yuvj420p") == ("bt470bg", "pc")


def test_what_no_matrix_makes_rgb_is_refused() -> None:
    for name in ("ictcp", "bt2020c", "chroma-derived-c", "ipt-c2", "smpte2085", "ycgco-re"):
        with pytest.raises(ValueError, match=f"coded as {name}.*convert it to BT.709"):
            settled(matrix=name, primaries="bt2020")
    # By primaries: theirs where there is one.
    assert settled(matrix="chroma-derived-nc", primaries="bt2020") == ("bt2020nc", "tv")
    with pytest.raises(ValueError, match="of smpte432 primaries"):
        settled(matrix="chroma-derived-nc", primaries="smpte432")


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_a_clip_in_ictcp_is_refused(codec: Any, tmp_path: Path) -> None:
    plain = write(Recipe(codec=codec, width=160, height=144, frames=4), tmp_path / "plain.mp4")
    with pytest.raises(VideoError, match="coded as ictcp"):
        stored(filtered(plain, f"{codec}_metadata=matrix_coefficients=14", tmp_path / "a.mp4"))


@pytest.mark.parametrize(
    ("name", "by", "expected"),
    [
        ("h264.mkv", "h264_metadata=matrix_coefficients=9:video_full_range_flag=1", ("bt2020", True, (1, 0))),
        ("h264.mov", "h264_metadata=matrix_coefficients=8:chroma_sample_loc_type=2", ("ycgco", False, (1, 1))),
        ("hevc.mkv", "hevc_metadata=matrix_coefficients=7:video_full_range_flag=1", ("smpte240m", True, (1, 0))),
        ("hevc.mp4", "hevc_metadata=matrix_coefficients=1:chroma_sample_loc_type=5", ("bt709", False, (0, -1))),
        ("vp9.webm", "vp9_metadata=color_space=bt709:color_range=pc", ("bt709", True, (1, 0))),
        ("vp9.mp4", "vp9_metadata=color_space=smpte240", ("smpte240m", False, (1, 0))),
        ("av1.mp4", "av1_metadata=matrix_coefficients=9:color_range=pc", ("bt2020", True, (1, 0))),
        ("av1.mkv", "av1_metadata=matrix_coefficients=1:chroma_sample_position=colocated", ("bt709", False, (1, 1))),
    ],
)
def test_what_the_bitstream_says_in_any_container(name: str, by: str, expected: Any, tmp_path: Path) -> None:
    """Whatever the container was told before."""
    codec, _, kind = name.partition(".")
    recipe = Recipe(codec=codec, container=kind, width=160, height=144, frames=3, colour="bt601")  # type: ignore[arg-type]
    clip = stored(filtered(write(recipe, tmp_path / f"plain.{kind}"), by, tmp_path / f"a.{kind}"))
    assert clip.color == Color(*expected)


@pytest.mark.parametrize("codec", ["h264", "vp9", "av1"])
def test_what_matroska_alone_says(codec: Any, tmp_path: Path) -> None:
    """Of AV1 it is in no sample description, and counted as a change of colours."""
    plain = write(Recipe(codec=codec, width=160, height=144, frames=3, colour="untagged"), tmp_path / "plain.mp4")
    with remuxing(plain, tmp_path / "a.mkv") as copy:
        copy.track.codec_context.colorspace = 9
        for packet in copy.packets:
            copy.mux(packet)
    assert (stored(plain).color_space, stored(tmp_path / "a.mkv").color_space) == ("smpte170m", "bt2020nc")


@pytest.mark.parametrize(("profile", "compatible", "readable"), [(5, 0, False), (8, 1, True), (8, 4, True)])
def test_dolby_vision_that_no_other_player_shows_is_refused(
    profile: int, compatible: int, readable: bool, tmp_path: Path
) -> None:
    """Profile 5 is IPT-PQ-C2, which the bitstream does not say; what phones record (8.4) is as tagged there."""
    recipe = Recipe(codec="hevc", width=160, height=144, frames=3, pix_fmt="yuv420p10le", colour="untagged")
    source = write(recipe, tmp_path / "a.mp4")
    data = bytearray(source.read_bytes())
    at = data.index(b"btrt")  # in its place, as long
    data[at : at + 9] = b"dvcC\1\0" + bytes([profile << 1, 0b101, compatible << 4])
    source.write_bytes(data)
    for path in (source, without_packets(source, tmp_path / "b.mkv")):
        if readable:
            assert stored(path).color_space == "smpte170m"
        else:
            with pytest.raises(VideoError, match="coded as ipt-c2"):
                stored(path)


def filtered(path: Path, by: str, target: Path) -> Path:
    """The same packets through a bitstream filter of FFmpeg."""
    with remuxing(path, target) as copy:
        context = av.BitStreamFilterContext(by, copy.stream, copy.track)
        for packet in [*copy.packets, None]:
            for one in context.filter(packet):
                copy.mux(one)
    return target


@pytest.mark.parametrize("codec", ["h264", "hevc", "vp9", "av1"])
@pytest.mark.parametrize("change", ["matrix", "range", "chroma"])
def test_colours_that_change_midway_are_not_copied(change: str, codec: Any, tmp_path: Path) -> None:
    """A row has one meaning. Transcoded, each frame is converted by its own tags."""
    kind: Any = "ts" if codec in ("h264", "hevc") else "mkv"
    recipe = Recipe(codec=codec, width=160, height=144, frames=6, b_frames=0, crf=5, container=kind, number=False)
    second = {"matrix": replace(recipe, colour="bt601"), "range": replace(recipe, full_range=True)}.get(change, recipe)
    parts = [write(one, tmp_path / f"{n}.{kind}") for n, one in enumerate((recipe, second))]
    if change == "chroma" and codec == "vp9":
        return  # it has no tag for that
    if change == "chroma":
        position = "chroma_sample_position=colocated" if codec == "av1" else "chroma_sample_loc_type=2"
        parts[1] = filtered(parts[1], f"{codec}_metadata={position}", tmp_path / f"moved.{kind}")
    video = VideoFile(
        one_after_the_other(parts, tmp_path / ("a.mkv" if kind == "mkv" else f"a.{codec}")), fps=Fraction(25)
    )
    with pytest.raises(CannotCopyError, match="change"):
        remux_with_ffmpeg(video, tmp_path)
    if change == "chroma":
        return
    transcode(video, tmp_path / "encoded.mp4", TranscodeOptions("h264", crf=5))
    clip = stored(tmp_path / "encoded.mp4")
    assert (clip.color_space, clip.color_range) == ("bt709", "tv")
    made = decode_with_pyav(whole(clip), color="auto").astype(float)
    expected = [decode_with_pyav(whole(stored(part)), color="auto") for part in parts]
    far = np.abs(made - np.concatenate(expected)).mean(axis=(1, 2, 3))
    assert far.max() < 2, far  # not converted it would be 6 and more


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_frames_do_not_take_tags_of_what_follows(codec: Any, tmp_path: Path) -> None:
    """FFmpeg outputs the last frames of a sequence without tags when the next one has begun, and then by its tags."""
    recipe = Recipe(codec=codec, width=160, height=144, frames=9, gop=9, b_frames=2, container="ts", colour="untagged")
    parts = [write(one, tmp_path / f"{n}.ts") for n, one in enumerate((recipe, replace(recipe, colour="bt2020")))]
    joined = one_after_the_other(parts, tmp_path / f"a.{codec}")
    with av.open(str(joined)) as container:
        assert [int(frame.colorspace) for frame in container.decode(video=0)] != [2] * 9 + [9] * 9, "FFmpeg is right"
    with pytest.raises(CannotCopyError, match="change"):
        remux_with_ffmpeg(video := VideoFile(joined, fps=Fraction(25)), tmp_path)
    transcode(video, tmp_path / "encoded.mp4", TranscodeOptions("h264", crf=5))
    made = decode_with_pyav(whole(stored(tmp_path / "encoded.mp4")), color="auto").astype(float)
    expected = np.concatenate([decode_with_pyav(whole(stored(part)), color="auto") for part in parts])
    far = np.abs(made - expected).mean(axis=(1, 2, 3))
    assert far[:9].max() < 1, far  # of the others' tags it would be 3


def test_the_range_is_that_of_tags_or_codec() -> None:
    assert settled(color_range="pc") == ("smpte170m", "pc")
    assert settled(pix_fmt="yuvj420p") == ("smpte170m", "pc")
    assert settled(matrix="gbr", pix_fmt="gbrp") == ("gbr", "pc")
    assert settled(matrix="gbr", pix_fmt="gbrp", color_range="tv") == ("gbr", "tv")
    assert settled(codec="mjpeg", pix_fmt="yuv420p", color_range="tv") == ("bt470bg", "tv")


def test_yuv_that_is_tagged_as_rgb() -> None:
    assert settled(matrix="gbr") == ("smpte170m", "tv")


def test_rows_that_were_not_settled() -> None:
    """Those of datasets that were packed when matrices did not matter."""
    row = {"codec": "h264", "stsd": b"", "color_range": "unknown"}
    left = (1, 0)
    assert clip_color(**row, color_space="unknown", width=640, height=360) == Color("bt601", False, left)  # type: ignore[arg-type]
    assert clip_color(**row, color_space="unknown", width=1920, height=800) == Color("bt709", False, left)  # type: ignore[arg-type]
    row |= {"codec": "mjpeg"}
    assert clip_color(**row, color_space="bt709", width=1920, height=800) == Color("bt601", True, (0, 0))  # type: ignore[arg-type]
    row |= {"codec": "mpeg1video", "color_space": "bt709"}
    assert clip_color(**row, width=64, height=64) == Color("bt709", False, (0, 0))  # type: ignore[arg-type]


def test_what_a_transform_may_ask_for() -> None:
    color = Color("bt709", True, (1, 1))
    assert color.chosen("auto") is color
    assert color.chosen("bt2020") == replace(color, matrix="bt2020")
    assert color.chosen("bt601") == replace(AS_DALI, full_range=True)


def stored(path: Path) -> StoredClip:
    (path.parent / path.stem).mkdir()
    return store_clip(path, path.parent / path.stem)


def retagged(path: Path, primaries: int, matrix: int) -> Path:
    """The same MP4 with other tags in its container."""
    data = path.read_bytes()
    assert data.count(b"nclx") == 1
    at = data.index(b"nclx") + 4
    made = bytes([0, primaries, 0, 2, 0, matrix])
    target = path.with_stem(f"{path.stem}-{primaries}-{matrix}")
    target.write_bytes(data[:at] + made + data[at + 6 :])
    return target


def test_the_bitstream_counts_and_then_the_container(tmp_path: Path) -> None:
    tagged = write(Recipe(width=96, height=64, frames=4, colour="bt709"), tmp_path / "tagged.mp4")
    # MPEG-4's bitstream does not say, as FFmpeg writes it.
    silent = write(Recipe(codec="mpeg4", width=96, height=64, frames=4, colour="bt709"), tmp_path / "silent.mp4")
    for primaries, matrix, found in ((9, 9, "bt2020nc"), (1, 2, "bt709"), (2, 2, "smpte170m"), (2, 5, "bt470bg")):
        assert stored(retagged(tagged, primaries, matrix)).color_space == "bt709"
        clip = stored(retagged(silent, primaries, matrix))
        assert clip.color_space == found
        assert clip.color == Color({"bt2020nc": "bt2020", "bt709": "bt709"}.get(found, "bt601"), False, (1, 0))  # type: ignore[arg-type]


def test_container_tags() -> None:
    entry = bytes(16) + bytes(86)
    assert container_tags(entry) == ("unknown", "unknown", "unknown")
    for kind, end, found in ((b"nclx", b"\x80", "pc"), (b"nclx", b"\0", "tv"), (b"nclc", b"", "unknown")):
        colr = b"colr" + kind + bytes([0, 9, 0, 16, 0, 9]) + end
        assert container_tags(entry + (len(colr) + 4).to_bytes(4, "big") + colr) == ("bt2020nc", "bt2020", found)
    vp9 = b"vpcC" + bytes([1, 0, 0, 0, 0, 10, 0x81, 9, 16, 9, 0, 0])
    assert container_tags(entry + (len(vp9) + 4).to_bytes(4, "big") + vp9) == ("bt2020nc", "bt2020", "pc")
    profile = b"colrprof" + bytes(40)
    assert container_tags(entry + (len(profile) + 4).to_bytes(4, "big") + profile)[0] == "unknown"


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_what_is_transcoded_says_where_its_chroma_lies(codec: Any, tmp_path: Path) -> None:
    """Motion JPEG's lies in the centre, MPEG-1's too, and that of 4:4:4 where swscale puts it."""
    small = Recipe(width=96, height=64, frames=4)
    sources: dict[str, tuple[StoredClip | Path, tuple[int, int]]] = {
        "left": (stored(write(small, tmp_path / "left.mp4")), (1, 0)),
        "half": (stored(write(replace(small, pix_fmt="yuv422p"), tmp_path / "half.mp4")), (1, 0)),
        "jpeg": (stored(write(replace(small, codec="mjpeg", container="mov"), tmp_path / "jpeg.mov")), (0, 0)),
        "full": (stored(write(replace(small, pix_fmt="yuv444p"), tmp_path / "full.mp4")), (0, 0)),
        "mpeg1": (mpeg1(tmp_path / "mpeg1.mpg"), (0, 0)),
    }
    for name, (source, siting) in sources.items():
        target = tmp_path / f"{name}-{codec}.mp4"
        transcode(source, target, TranscodeOptions(codec))
        assert stored(target).color.siting == siting, name


def mpeg1(path: Path) -> Path:
    with av.open(str(path), "w", format="mpeg") as output:
        stream = output.add_stream("mpeg1video", rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for _ in range(4):
            output.mux(stream.encode(av.VideoFrame(96, 64, "yuv420p")))
        output.mux(stream.encode(None))
    return path


def test_where_swscale_puts_the_chroma_of_full_size_is_what_the_tag_says(tmp_path: Path) -> None:
    """A ramp of colour: half a pixel of siting is half a step of it."""
    size = (256, 64)
    frame = av.VideoFrame(*size, "yuv444p")
    for number, plane in enumerate(frame.planes):
        lines = np.frombuffer(plane, dtype=np.uint8).reshape(plane.height, plane.line_size)  # type: ignore[arg-type]
        lines[:, : size[0]] = np.arange(size[0]) // 2 + 64 if number else 128
    encode(
        TimedFrames([TimedFrame(frame, 0, 1)], Fraction(1, 25), Fraction(25)),
        tmp_path / "a.mp4",
        TranscodeOptions("h264", crf=1),
    )
    made = decode_with_pyav(whole(stored(tmp_path / "a.mp4")), color="auto")[0].astype(float)
    wanted = np.empty((size[1], size[0], 3), dtype=np.uint8)
    FullSizeConverter(Color("bt601", False, (0, 0)))(picture_of(frame), wanted.transpose(2, 0, 1))
    bias = {name: float((made - wanted)[:, 16:-16, n].mean()) for n, name in enumerate("rgb")}
    assert all(abs(one) < 0.25 for one in bias.values()), bias  # half a pixel is 0.35 to 0.5


@pytest.mark.parametrize("codec", ["h264", "hevc", "vp9", "av1"])
def test_what_is_scaled_keeps_its_matrix(codec: str, tmp_path: Path) -> None:
    """HD without tags is BT.709; without tags again, it would be BT.601 in its new size."""
    source = stored(write(Recipe(width=1280, height=720, frames=1, colour="untagged"), tmp_path / "hd.mp4"))
    assert (source.color_space, source.color_range) == ("bt709", "tv")
    for given, name in ((source, "clip"), (source.mp4, "file")):
        target = tmp_path / f"{name}.mp4"
        transcode(given, target, TranscodeOptions(codec, short_side=144))  # type: ignore[arg-type]
        clip = stored(target)
        assert (clip.height, clip.color_space, clip.color_range) == (144, "bt709", "tv")
        # By its own tags: players, too, see the same.
        assert (clip.color.matrix, replace(clip, color_space="unknown").color.matrix) == ("bt709", "bt601")
