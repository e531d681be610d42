"""Folders of images as clips: every frame is its JPEG, bit for bit, in order, at its time."""

from __future__ import annotations

import struct
import zlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.decode.cpu import decode_with_pyav
from streamvid.errors import InputError, VideoError
from streamvid.packing.images import check_rate, find_sequence, sequence_video
from streamvid.packing.inputs import find_sources
from streamvid.packing.metadata import MetadataLists
from streamvid.packing.options import PackOptions, PreparedClip
from streamvid.packing.process_source import process_source
from streamvid.packing.source_video import SourceVideo
from streamvid.storage.retry import Retry
from streamvid.video.stored_clip import StoredClip
from streamvid.video.transcode import TranscodeOptions
from tests.support import images
from tests.support.reference import packets_of, to_rgb, whole
from tools.clips import Recipe, paint, read_frame_number

RECIPE = Recipe(width=96, height=64, frames=12)
Picture = npt.NDArray[np.uint8]


def jpeg(picture: Picture, pix_fmt: str = "yuvj420p") -> bytes:
    return _image("mjpeg", picture, pix_fmt, qmin=2, qmax=2)


def _image(codec: str, picture: Picture, pix_fmt: str, **options: int) -> bytes:
    context: Any = av.CodecContext.create(codec, "w")
    context.height, context.width = picture.shape[:2]
    context.pix_fmt, context.time_base = pix_fmt, Fraction(1, 25)
    for name, value in options.items():
        setattr(context, name, value)
    frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=pix_fmt)
    frame.pts = 0
    return b"".join(bytes(packet) for packet in [*context.encode(frame), *context.encode(None)])


def with_orientation(data: bytes, value: int) -> bytes:
    """The JPEG with an EXIF segment that says how to turn it."""
    directory = struct.pack(">HHHIHHI", 1, 0x112, 3, 1, value, 0, 0)
    body = b"Exif\0\0MM\0*" + struct.pack(">I", 8) + directory
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + data[2:]


def write_jpegs(folder: Path, names: list[str]) -> list[bytes]:
    folder.mkdir(parents=True)
    files = [jpeg(picture) for picture, _ in zip(paint(RECIPE), names, strict=False)]
    for name, data in zip(names, files, strict=True):
        (folder / name).write_bytes(data)
    return files


def store(folder: Path, options: PackOptions, place: Path) -> StoredClip:
    (piece,) = process_source(SourceVideo(f"{folder}/", folder.name, "key"), place, options, Retry())
    assert isinstance(piece, PreparedClip)
    return piece.clip


def decoded(data: bytes) -> Picture:
    """A JPEG by FFmpeg alone, as the loader converts it to RGB."""
    context: Any = av.CodecContext.create("mjpeg", "r")
    packet = av.Packet(len(data))
    packet.update(data)
    (frame,) = [*context.decode(packet), *context.decode(None)]
    return to_rgb(frame, full_range=True)


def test_every_frame_is_its_jpeg(tmp_path: Path) -> None:
    files = write_jpegs(tmp_path / "in", [f"img{n}.jpg" for n in range(12)])
    clip = store(tmp_path / "in", PackOptions(fps=Fraction(30000, 1001)), tmp_path / "out")
    assert (clip.codec, clip.pix_fmt, clip.color_range) == ("mjpeg", "yuvj420p", "pc")
    frames = decode_with_pyav(whole(clip))
    np.testing.assert_array_equal(frames, [decoded(data) for data in files])
    assert [read_frame_number(frame) for frame in frames] == list(range(12)), "img10 comes after img9"
    times = [int(pts) * Fraction(*clip.time_base) for pts in clip.index.frame_pts]
    assert times == [n * Fraction(1001, 30000) for n in range(12)]
    assert clip.duration * Fraction(*clip.time_base) == 12 * Fraction(1001, 30000)
    assert clip.index.keyframes.tolist() == list(range(12))
    assert packets_of(clip) == files, "the files' own bytes"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("timestamps.txt", "10\n10.04\n10.5\n11\n"),
        ("timestamps.txt", "30/3\n251/25\n 21/2\n11\n"),
        ("timestamps.csv", "image,seconds\na1.jpg,10\na2.jpg,10.04\na4.jpg,10.5\na10.jpg,11\n"),
        ("Timestamps.CSV", "\ufeffseconds\r\n10\r\n10.04\r\n10.5\r\n11.000\r\n"),
    ],
)
def test_times_from_a_file(name: str, text: str, tmp_path: Path) -> None:
    write_jpegs(tmp_path / "in", ["a1.jpg", "a2.jpg", "a4.jpg", "a10.jpg"])
    (tmp_path / "in" / name).write_text(text, encoding="utf-8")
    (tmp_path / "in" / ".DS_Store").write_bytes(b"x")
    clip = store(tmp_path / "in", PackOptions(), tmp_path / "out")
    times = [float(pts * Fraction(*clip.time_base)) for pts in clip.index.frame_pts.tolist()]
    assert times == [0.0, 0.04, 0.5, 1.0]
    assert [read_frame_number(frame) for frame in decode_with_pyav(whole(clip))] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0\n1\n", "2 times for 3 images"),
        ("0\n1\n1\n", "do not rise"),
        ("0\nsoon\n2\n", "does not hold seconds"),
        ("0\n1\n1e300\n", "are not seconds"),
        ("0\n1\n1e400\n", "are not seconds"),
        ("0\nnan\n2\n", "does not hold seconds"),
    ],
)
def test_times_that_cannot_be(text: str, reason: str, tmp_path: Path) -> None:
    write_jpegs(tmp_path / "in", ["1.jpg", "2.jpg", "3.jpg"])
    (tmp_path / "in/timestamps.txt").write_text(text)
    with pytest.raises(VideoError, match=reason):
        store(tmp_path / "in", PackOptions(), tmp_path / "out")


def test_without_times_and_rate_the_user_is_asked(tmp_path: Path) -> None:
    write_jpegs(tmp_path / "in", ["1.jpg", "2.jpg"])
    with pytest.raises(InputError, match="--fps"):
        store(tmp_path / "in", PackOptions(), tmp_path / "out")


def test_a_listed_folder_of_videos_is_not_asked_for_a_rate(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/film.mp4").write_bytes(b"x")
    check_rate([f"{tmp_path}/in/"], None)
    with pytest.raises(VideoError, match=r"it is a folder, and no image sequence.*: list the videos in it one by one"):
        store(tmp_path / "in", PackOptions(), tmp_path / "out")


@pytest.mark.parametrize("codec", ["png", "bmp"])
def test_other_images_are_encoded(codec: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pix_fmt = {"png": "rgb24", "bmp": "bgr24"}[codec]
    pictures = list(paint(RECIPE))
    for n, picture in enumerate(pictures):
        (tmp_path / f"in/frame_{n:03}.{codec}").write_bytes(_image(codec, picture, pix_fmt))
    clip = store(tmp_path / "in", PackOptions(fps=Fraction(24)), tmp_path / "out")
    assert (clip.codec, clip.pix_fmt, clip.color_space) == ("h264", "yuv420p", "smpte170m")
    frames = decode_with_pyav(whole(clip))
    assert [read_frame_number(frame) for frame in frames] == list(range(12))
    assert 10 * np.log10(255**2 / np.mean((frames.astype(np.float32) - np.array(pictures)) ** 2)) > 26
    assert [int(pts) * Fraction(*clip.time_base) for pts in clip.index.frame_pts] == [
        Fraction(n, 24) for n in range(12)
    ]


def first_frame(name: str, data: bytes, place: Path) -> tuple[StoredClip, Picture]:
    """Of the video of two images."""
    (place / "in").mkdir(parents=True)
    for number in range(2):
        (place / "in" / f"{number}{name}").write_bytes(data)
    clip = store(place / "in", PackOptions(fps=Fraction(24)), place / "out")
    return clip, decode_with_pyav(whole(clip))[0]


def test_images_that_ffmpeg_decodes_wrongly_are_right(tmp_path: Path) -> None:
    """JPEG in a TIFF was black. The second half of a PNG that lacks it, too, which is listed."""
    picture = images.picture(46, 62)
    _, frame = first_frame(".tif", images.encode(picture, "TIFF", compression="jpeg", quality=95), tmp_path / "jpeg")
    assert np.abs(frame.astype(int) - picture).mean() < 4
    lines = b"".join(b"\0" + line.tobytes() for line in picture)
    png = images.encode(picture, "PNG")
    half = png[:33] + images.chunk(b"IDAT", zlib.compress(lines[: len(lines) // 2])) + images.chunk(b"IEND", b"")
    with pytest.raises(VideoError, match=r"0.png cannot be decoded: DALI"):
        first_frame(".png", half, tmp_path / "half")


@pytest.mark.parametrize("form", ["PNG", "WEBP", "TIFF"])
def test_exif_orientation_of_encoded_images_is_carried(form: str, tmp_path: Path) -> None:
    turned = [images.encode(images.picture(46, 62), form, exif=images.exif(n)) for n in (6, 8)]
    clip, frame = first_frame(f".{form.lower()}", turned[0], tmp_path)
    assert (clip.rotation, frame.shape) == (90, (46, 62, 3))
    (tmp_path / f"in/1.{form.lower()}").write_bytes(turned[1])
    with pytest.raises(VideoError, match="another EXIF orientation than 0"):
        store(tmp_path / "in", PackOptions(fps=Fraction(24)), tmp_path / "out")


def test_jpegs_are_converted_where_that_is_asked_for(tmp_path: Path) -> None:
    write_jpegs(tmp_path / "in", [f"{n}.jpg" for n in range(12)])
    clip = store(tmp_path / "in", PackOptions(fps=Fraction(24), transcode=TranscodeOptions("hevc")), tmp_path / "out")
    assert clip.codec == "hevc"
    assert [read_frame_number(frame) for frame in decode_with_pyav(whole(clip))] == list(range(12))


@pytest.mark.parametrize(
    ("value", "degrees"), [(1, 0), (2, 360), (3, 180), (4, 540), (5, 630), (6, 90), (7, 450), (8, 270)]
)
def test_exif_orientation_is_carried(value: int, degrees: int, tmp_path: Path) -> None:
    """6: the camera stood so that the picture must be turned by 90 degrees clockwise. 2: mirrored, left to right."""
    for n, data in enumerate(write_jpegs(tmp_path / "in", ["1.jpg", "2.jpg"]), 1):
        (tmp_path / f"in/{n}.jpg").write_bytes(with_orientation(data, value))
    clip = store(tmp_path / "in", PackOptions(fps=Fraction(24)), tmp_path / "out")
    assert clip.rotation == degrees
    assert (clip.width, clip.height) == (96, 64)
    assert [read_frame_number(frame) for frame in decode_with_pyav(whole(clip))] == [0, 1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[: len(data) // 2], "b.*2.jpg is cut off"),
        (lambda data: b"\x89PNG" + data, "2.jpg is no JPEG"),
        (lambda data: b"", "2.jpg is no JPEG"),
        (lambda data: with_orientation(data, 6), "2.jpg is 96x64 yuvj420p with EXIF orientation 6, b1.jpg is 96x64"),
        (lambda data: jpeg(np.zeros((64, 128, 3), np.uint8)), "2.jpg is 128x64 yuvj420p, b1.jpg is 96x64"),
        (lambda data: jpeg(np.zeros((64, 96, 3), np.uint8), "yuvj444p"), "2.jpg is 96x64 yuvj444p, b1.jpg"),
        (lambda data: data.replace(b"\xff\xc0", b"\xff\xc9", 1), "2.jpg is a lossless or arithmetic JPEG"),
        (lambda data: data[:2] + b"\xff\xd9", "2.jpg cannot be decoded"),
    ],
)
def test_what_is_wrong_with_an_image_is_said(change: Any, reason: str, tmp_path: Path) -> None:
    files = write_jpegs(tmp_path / "in", ["b1.jpg", "b2.jpg", "b3.jpg"])
    (tmp_path / "in/b2.jpg").write_bytes(change(files[1]))
    with pytest.raises(VideoError, match=reason.removeprefix("b.*")):
        store(tmp_path / "in", PackOptions(fps=Fraction(24)), tmp_path / "out")


def test_two_images_of_one_number(tmp_path: Path) -> None:
    write_jpegs(tmp_path / "in", ["a1.jpg", "a01.jpg"])
    with pytest.raises(VideoError, match="have the number 1"):
        sequence_video(f"{tmp_path}/in/", tmp_path, fps=Fraction(1), options=TranscodeOptions(), retry=Retry())


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["img10.jpg", "img2.jpg", "img1.jpg"], ["img1.jpg", "img2.jpg", "img10.jpg"]),
        (["0001.PNG", "0003.png"], ["0001.PNG", "0003.png"]),
        (["a1.jpg", "a2.jpeg", ".hidden", "timestamps.csv"], ["a1.jpg", "a2.jpeg"]),
        (["a1.jpg", "b2.jpg"], []),
        (["a1.jpg", "a2.png"], []),
        (["a1.jpg", "a2.jpg", "notes.txt"], []),
        (["a1.jpg", "cover.jpg"], []),
        (["a1.jpg"], []),
        ([], []),
        (["2024-01-02.jpg", "2024-01-10.jpg"], ["2024-01-02.jpg", "2024-01-10.jpg"]),
    ],
)
def test_what_an_image_sequence_is(names: list[str], found: list[str]) -> None:
    assert find_sequence(names) == found


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=30, unique=True), st.text("ab%_-d1", max_size=6))
def test_order_is_that_of_the_numbers(numbers: list[int], prefix: str) -> None:
    prefix = prefix.rstrip("1")
    names = [f"{prefix}{n}.jpg" for n in numbers]
    assert find_sequence(sorted(names)) == [f"{prefix}{n}.jpg" for n in sorted(numbers)]


def test_a_tree_of_sequences_and_videos(tmp_path: Path) -> None:
    """A clip for each folder of images; thumbnails beside a video are none."""
    write_jpegs(tmp_path / "in/cats/walk", ["1.jpg", "2.jpg"])
    write_jpegs(tmp_path / "in/dogs.v2/run", ["f1.jpg", "f2.jpg"])
    write_jpegs(tmp_path / "in/films", ["1.jpg", "2.jpg"])
    (tmp_path / "in/films/film.mp4").write_bytes(b"x")
    write_jpegs(tmp_path / "in/.trash", ["1.jpg", "2.jpg"])
    sources = find_sources([str(tmp_path / "in")], MetadataLists())
    assert [(source.name, source.path.removeprefix(str(tmp_path))) for source in sources] == [
        ("cats/walk", "/in/cats/walk/"),
        ("dogs.v2/run", "/in/dogs.v2/run/"),
        ("films/film.mp4", "/in/films/film.mp4"),
    ]
    (single,) = find_sources([str(tmp_path / "in/cats/walk")], MetadataLists())
    assert (single.name, single.key) == ("walk", "walk")
    (tmp_path / "list.csv").write_text("path\nin/cats/walk\nin/films/film.mp4\n")
    assert [source.path[-5:] for source in find_sources([str(tmp_path / "list.csv")], MetadataLists())] == [
        "walk/",
        "m.mp4",
    ]


def test_remote_folders(tmp_path: Path) -> None:
    import fsspec

    files = write_jpegs(tmp_path / "in", [f"img{n}.jpg" for n in range(12)])
    memory = fsspec.filesystem("memory")
    for n, data in enumerate(files):
        memory.pipe_file(f"/images-test/walk/img{n}.jpg", data)
    try:
        (source,) = find_sources(["memory://images-test"], MetadataLists())
        assert source.name == "walk"
        (piece,) = process_source(source, tmp_path / "out", PackOptions(fps=Fraction(24)), Retry())
    finally:
        memory.rm("/images-test", recursive=True)
    assert isinstance(piece, PreparedClip)
    np.testing.assert_array_equal(decode_with_pyav(whole(piece.clip)), [decoded(data) for data in files])
