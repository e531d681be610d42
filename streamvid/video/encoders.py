"""The encoders' settings: closed GOPs, no pictures that are coded and not shown, and the same bytes every time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Target = Literal["h264", "hevc", "vp9", "av1", "mjpeg"]
TARGETS: Final[tuple[Target, ...]] = ("h264", "hevc", "vp9", "av1", "mjpeg")


@dataclass(frozen=True)
class Encoder:
    """What has to be known of an encoder.

    Attributes:
        name: FFmpeg's name of it.
        crf: quality unless told otherwise.
        crf_range: the best and the worst quality it knows.
        block: both sides must be multiples of this many pixels for the coded size to be the display size.
        least: the smallest side it takes, in pixels.
        delay: most frames by which reordering delays presentation; B-frames without a pyramid need one.
        depths: bits per sample that are kept; deeper video becomes the deepest of them.
    """

    name: str
    crf: int
    crf_range: tuple[int, int]
    block: int
    least: int
    delay: int
    depths: tuple[int, ...]


ENCODERS: Final[dict[Target, Encoder]] = {
    # 16 for HEVC too: its own blocks are 8, but NVDEC works in rows of 16, and DALI looks its decoders up by those.
    "h264": Encoder("libx264", 18, (0, 51), 16, 16, 1, (8,)),
    "hevc": Encoder("libx265", 20, (0, 51), 16, 32, 1, (8, 10)),
    "vp9": Encoder("libvpx-vp9", 20, (0, 63), 2, 16, 0, (8,)),
    "av1": Encoder("libsvtav1", 22, (0, 63), 2, 64, 0, (8, 10)),
    "mjpeg": Encoder("mjpeg", 2, (1, 31), 2, 16, 0, (8,)),
}


def settings(codec: Target, *, gop: int, crf: int | None, deep: bool) -> dict[str, str]:
    """FFmpeg's options for an encoder.

    Args:
        codec: what to encode into.
        gop: frames from one key frame to the next.
        crf: quality; None for the default.
        deep: 10 bits per sample.
    """
    quality = ENCODERS[codec].crf if crf is None else crf
    every = {"scenecut": 0, "keyint": gop, "min-keyint": min(gop, 2), "open-gop": 0}
    match codec:
        case "h264":
            # With macroblock trees, clips 96 or 320 pixels wide come out in other bytes from run to run, even with one
            # thread: x264 reads memory that nothing was written to. Without a pyramid any B-frame can be left out.
            params = {**every, "threads": 1, "lookahead-threads": 1, "mbtree": 0, "b-pyramid": "none"}
            return {
                "preset": "medium",
                "crf": str(quality),
                "forced-idr": "1",
                "a53cc": "0",
                "x264-params": _joined(params),
            }
        case "hevc":
            params = {**every, "log-level": "none", "pools": "none", "frame-threads": 1, "wpp": 0, "b-pyramid": 0}
            return {"preset": "fast", "crf": str(quality), "forced-idr": "1", "x265-params": _joined(params)}
        case "vp9":
            # Alternative references are pictures that are coded and not shown, or shown by a packet of their own.
            hidden = {"auto-alt-ref": "0", "lag-in-frames": "0"}
            effort = {"deadline": "good", "cpu-used": "4", "row-mt": "0", "threads": "1"}
            return {"crf": str(quality), "b": "0", "keyint_min": "0", **effort, **hidden}
        case "av1":
            params = {"lp": 1, "scd": 0, "irefresh-type": 2, "keyint": gop}
            return {"preset": "8", "crf": str(quality), "svtav1-params": _joined(params)}
        case "mjpeg":
            return {"qmin": str(quality), "qmax": str(quality), "huffman": "optimal"}


def _joined(params: dict[str, object]) -> str:
    return ":".join(f"{name}={value}" for name, value in params.items())
