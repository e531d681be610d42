"""The containers that are opened: those that FFmpeg reads from a single file, chosen by content, never by name.

`FORMATS` lists the allowed demuxers. Formats that may refer to other files or to URLs are not among them: playlists
(hls, dash, imf, concat, sdp), image patterns (image2), scripts (avisynth, vapoursynth, lavfi), recordings split over
files (mlv, vobsub), text (tty). Nor are audio, single pictures (the `_pipe` formats, fits), and raw pixels.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from streamvid.errors import VideoError

RAW_STREAMS: Final = frozenset({
    "apv", "av1", "avs2", "avs3", "cavsvideo", "cdxl", "dirac", "dnxhd", "evc", "h261", "h263", "h264", "hevc",
    "ingenient", "ipu", "lmlm4", "m4v", "mjpeg", "mjpeg_2000", "mpegvideo", "mpjpeg", "nc", "obu", "ser", "vc1", "vvc",
})  # fmt: skip
"""FFmpeg's demuxers of streams without a container, or of containers without times. FFmpeg makes up 25 frames a second
for most of them."""
TRUSTED_TIMES: Final = frozenset({"flv", "ivf", "matroska", "mov", "mpeg", "mpegts", "nut", "wtv"})
"""Demuxers whose presentation times are right where frames are reordered, too."""
FORMATS: Final = (
    # formats of cameras, broadcasters, editors and the web
    "apng", "asf", "avi", "cine", "dhav", "dv", "flv", "gif", "gxf", "hxvs", "ifv", "iv8", "ivf", "kux",
    "luodat", "lxf", "matroska", "webm", "mov", "mp4", "m4a", "3gp", "3g2", "mj2", "mpeg", "mpegts",
    "mtv", "mxf", "mxg", "nsv", "nut", "nuv", "ogg", "pmp", "pva", "rm", "ivr", "r3d",
    "siff", "smjpeg", "swf", "ty", "vc1test", "vividas", "vivo", "wtv", "yuv4mpegpipe",
    # games and animations
    "4xm", "anm", "avs", "bethsoftvid", "bfi", "bink", "bmv", "c93", "dfa", "dsicin", "dxa", "ea",
    "film_cpk", "flic", "gdv", "hnm", "idcin", "ipmovie", "jv", "mm", "mods", "moflex", "mv", "mvi", "paf",
    "pdv", "psxstr", "rl2", "roq", "rpl", "sga", "smk", "smush", "thp", "tiertexseq", "tmv", "usm", "vmd",
    "wc3movie", "wsvqa", "xmv", "yop",
    *sorted(RAW_STREAMS),
)  # fmt: skip
"""Names of the demuxers that may read a file."""
VIDEO_EXTENSIONS: Final = (
    ".mp4", ".m4v", ".mov", ".qt", ".mj2", ".f4v", ".ismv", ".insv", ".3gp", ".3g2", ".3gpp", ".mkv", ".mk3d",
    ".webm", ".avi", ".divx", ".amv", ".flv", ".kux", ".wmv", ".asf", ".dvr-ms", ".wtv", ".ts", ".m2ts", ".mts",
    ".m2t", ".tod", ".trp", ".mpg", ".mpeg", ".mpe", ".m2p", ".mod", ".vob", ".evo", ".mxf", ".gxf", ".lxf",
    ".nut", ".ogv", ".ogg", ".ogm", ".rm", ".rmvb", ".ivr", ".nsv", ".nuv", ".swf", ".gif", ".apng", ".y4m",
    ".ivf", ".dv", ".dif", ".dav", ".h264", ".264", ".avc", ".h265", ".265", ".hevc", ".h266", ".266", ".vvc",
    ".obu", ".av1", ".m1v", ".m2v", ".mpv", ".m4e", ".vc1", ".rcv", ".avs2", ".avs3", ".cavs", ".drc", ".vc2",
    ".dnxhd", ".dnxhr", ".apv", ".h261", ".h263", ".mjpeg", ".mjpg", ".smk", ".bik", ".bk2", ".fli", ".flc",
    ".flic", ".roq", ".thp", ".viv", ".cine", ".ser", ".mlv", ".r3d",
)  # fmt: skip
"""Extensions by which packing searches folders and globs. Files that are named one by one may have any."""
IMAGE_EXTENSIONS: Final = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".tif", ".tiff", ".bmp", ".dib", ".jp2", ".j2k", ".j2c", ".jpc",
    ".jpf", ".jpx",
)  # fmt: skip
"""Extensions of single images, which may be clips of one frame. The format of such a file follows from its content."""

_PICTURE: Final = "a single picture without the extension of one"
_KINDS: Final[Mapping[bytes, str]] = {
    b"#EXTM3U": "an HLS playlist, which names other files",
    b"ffconcat version": "an ffconcat script, which names other files",
    b"<MPD": "a DASH manifest, which names other files",
    b"<CompositionPlaylist": "an IMF playlist, which names other files",
    b"v=0": "an SDP description of a network stream",
    b"# VobSub index": "an index of VobSub subtitles",
    b"MLVI": "a Magic Lantern recording, which may go on in other files",
    b"\x89PNG": _PICTURE,
    b"\xff\xd8\xff": _PICTURE,
    b"BM": _PICTURE,
    b"ID3": "audio",
    b"fLaC": "audio",
}
"""First bytes of refused kinds of files, and the kinds in words."""
_OTHERS: Final[Mapping[bytes, str]] = {
    b"version https://git-lfs": "it is a pointer of Git LFS, and not the file itself: git lfs pull fetches that",
    b"<!doctype html": "it is a web page, such as a server's error: download the file again",
    b"<html": "it is a web page, such as a server's error: download the file again",
    b"<error>": "it is the error message of an object store: download the file again",
    **{
        start: f"it is compressed ({how}), so that nothing in it can be read by itself: unpack it"
        for start, how in (
            (b"\x1f\x8b", "gzip"), *((b"BZh%d1AY&SY" % level, "bzip2") for level in range(1, 10)),
            (b"\xfd7zXZ", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\x04\x22\x4d\x18", "lz4"),
            (b"PK\x03\x04", "zip"), (b"7z\xbc\xaf", "7z"), (b"Rar!\x1a\x07", "rar"),
        )
    },
}  # fmt: skip
"""By first bytes (text in lower case): what a file holds contrary to its name, and what to do."""
_XML: Final = re.compile(rb"<\?xml[^>]*>\s*")
_TEXT: Final = bytes({*b"\t\n\f\r", *range(0x20, 0x7F), *range(0x80, 0x100)})
"""Bytes of text in ASCII's supersets."""
_HEAD_BYTES: Final = 4096
_PICTURES_BYTES: Final = 1 << 20
_RAW_STARTS: Final = {
    "h264": re.compile(rb"\0\0+\x01(\x09.\0\0+\x01)?[\x27\x47\x67]", re.DOTALL),
    "hevc": re.compile(rb"\0\0+\x01(\x46\x01.\0\0+\x01)?\x40\x01", re.DOTALL),
}
"""First bytes of raw streams."""


def is_timed(container: str, source: Path) -> bool:
    """Whether a file has timestamps or a frame rate.

    Args:
        container: the first of FFmpeg's names of its format, such as "mov".
    """
    if container == "yuv4mpegpipe":
        with source.open("rb") as file:
            header = file.readline(_HEAD_BYTES).split()  # YUV4MPEG2 W352 H288 F30:1 …
        return any(re.fullmatch(rb"F[1-9]\d*:[1-9]\d*", word) for word in header)
    return container not in RAW_STREAMS


def raw_format(source: Path) -> str | None:
    """FFmpeg's name of the format of a raw stream that it may not recognise; None if there is no such doubt.

    It takes most streams of JPEGs for one picture, and does not know H.264 and HEVC with units of further layers (SVC,
    MVC, MV-HEVC) by their content. H.264 and HEVC begin with a parameter set, perhaps behind a delimiter.
    """
    with source.open("rb") as file:
        head = file.read(16)
        if head.startswith(b"\xff\xd8\xff"):  # SOI, and a marker: three JPEGs, one behind the other
            return "mjpeg" if file.read(_PICTURES_BYTES).count(b"\xff\xd9\xff\xd8\xff") > 1 else None  # EOI, SOI
    return next((name for name, start in _RAW_STARTS.items() if start.match(head)), None)


def kind_of_refused(source: Path) -> str:
    """For a message: what a file holds that no demuxer in `FORMATS` reads, and what to do; "" if unknown."""
    with source.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if other := other_content(head):
        return other
    if head[8:12] == b"WEBP":
        return refused("a picture, or an animation that FFmpeg does not decode")
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"<?xml"):
        text = text[max(0, *(text.find(tag) for tag in _KINDS if tag.startswith(b"<"))) :]
    if kind := next((kind for start, kind in _KINDS.items() if text.startswith(start)), ""):
        return refused(kind)
    if head.translate(None, _TEXT):
        return ""
    return "it is text and no video; a list of videos is a .csv, .jsonl or .parquet with a column path"


def refused(kind: str) -> str:
    """The message for a file of a kind that is not read."""
    return f"it is {kind}: convert it to one video file, such as an MP4, first"


def other_content(head: bytes) -> str:
    """For a message: what a file holds contrary to its name, and what to do; "" if unknown.

    Args:
        head: its first bytes.
    """
    text = _XML.sub(b"", head.removeprefix(b"\xef\xbb\xbf").lstrip()).lower()
    return next((what for start, what in _OTHERS.items() if head.startswith(start) or text.startswith(start)), "")


def check_pattern(pattern: str) -> None:
    """Refuse an MXF file that is a part of a clip, by its operational pattern (SMPTE ST 377-1, 8.3.3).

    Args:
        pattern: the universal label in hex, as in FFmpeg's metadata.

    Raises:
        ValueError: the file is OP-Atom, or its essence is in other files.
    """
    label = bytes.fromhex(pattern.replace(".", ""))
    if len(label) == 16 and (label[12] == _OP_ATOM or label[14] & _EXTERNAL):
        raise ValueError("it is a part of a split MXF clip (OP-Atom, or essence in other files): wrap it as OP1a first")


_OP_ATOM: Final = 0x10
_EXTERNAL: Final = 2
"""Bit of the qualifiers that says that essence is in other files."""


@contextmanager
def nameless(source: Path) -> Iterator[str]:
    """A context with a URL of a local file that does not contain its name.

    FFmpeg uses names as hints of the format, and some, such as `%03d.gif`, as patterns of names.

    Raises:
        VideoError: the file cannot be opened.
    """
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError) and not os.path.lexists(source)
        why = f"there is no file '{source}'" if missing else f"it cannot be opened: {error.strerror}"
        if os.path.islink(source):
            why += f"; it is a link to '{os.readlink(source)}'"
        raise VideoError(why) from error
    try:
        yield f"file:/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
