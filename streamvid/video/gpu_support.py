"""What a GPU's decoder can take, and what becomes of a clip that it cannot: the table of docs/packing.md, as functions.

`streamvid.loader.preflight` refuses at run time what is known to fail; what these rules let through, it must accept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from streamvid.errors import InputError
from streamvid.video.encoders import Target
from streamvid.video.frame_index import RANDOM_ACCESS
from streamvid.video.stored_clip import UNORDERED, StoredClip
from streamvid.video.transcode import TranscodeOptions

Purpose = Literal["gpu", "gpu-no-av1", "any"]
PURPOSES: Final[tuple[Purpose, ...]] = ("gpu", "gpu-no-av1", "any")

_EIGHT_BITS: Final = ("yuv420p", "yuvj420p")
_TEN_BITS: Final = "yuv420p10le"
_TEN_BIT_CODECS: Final = ("hevc", "av1")

# As cuvidGetDecoderCaps says on an H200: the smallest width and height, and the largest side. AV1, which that has no
# decoder for, by NVIDIA's table of other chips.
_LIMITS: Final = {
    "h264": (48, 16, 4096),
    "hevc": (144, 144, 8192),
    "vp8": (48, 16, 4096),
    "vp9": (128, 128, 8192),
    "av1": (128, 128, 8192),
}


@dataclass(frozen=True)
class Support:
    """What is wrong with a clip for its purpose, and what mends it.

    Attributes:
        problem: in words, for people; empty if there is nothing.
        codec: what to convert it into; None where that does not help, or is not asked for.
    """

    problem: str = ""
    codec: Target | None = None


def check(clip: StoredClip, purpose: Purpose) -> Support:
    """Whether a clip that was copied suits its purpose.

    Args:
        clip: as it was stored: what its bitstream holds is known by now.
        purpose: "gpu": NVDEC behind DALI; AV1 is left, as newer chips have it. "gpu-no-av1": a chip without AV1, such
            as A100, H100 and H200. "any": nothing is converted.
    """
    problem = gpu_problem(clip)
    if not problem and clip.codec == "av1" and purpose != "gpu":
        problem = "GPUs such as A100, H100 and H200 have no AV1 decoder"
    if not problem or purpose == "any" or clip.codec == "mjpeg":
        return Support(problem)
    return Support(problem, _target(clip))


def gpu_problem(clip: StoredClip) -> str:
    """What keeps NVDEC behind DALI from decoding a clip rightly; empty if nothing is known."""
    index = clip.index
    if clip.codec == "mjpeg":
        return "Motion JPEG is decoded on the CPU, also where the GPU does the rest"
    if clip.pix_fmt not in (*_EIGHT_BITS, _TEN_BITS):
        return f"NVDEC behind DALI decodes 4:2:0 alone, with 8 or 10 bits, not {clip.pix_fmt}"
    if clip.pix_fmt == _TEN_BITS and clip.codec not in _TEN_BIT_CODECS:
        return f"NVDEC decodes 10 bits of HEVC and AV1 alone, not of {clip.codec}"
    if clip.width % 2 or clip.height % 2:
        return f"DALI garbles frames with an odd side, here {clip.width}x{clip.height}"
    if "lead-in" in clip.traits.split(",") and clip.codec in ("h264", "hevc"):
        return "it does not begin with a picture that a decoder can start from"
    if UNORDERED in clip.traits.split(","):
        return "the order of its pictures cannot be told: the CPU decodes it, also where the GPU does the rest"
    if {"show-existing", "superframes"} & set(clip.traits.split(",")):
        return "DALI gets frames wrong where VP9 has hidden pictures"
    if clip.codec == "h264" and len(index) > 1 and bool(np.all(index.flags & RANDOM_ACCESS)):
        return "DALI fails on H.264 of I-frames alone"
    if clip.codec in _LIMITS:
        width, height, most = _LIMITS[clip.codec]
        if clip.width < width or clip.height < height or max(clip.width, clip.height) > most:
            return f"NVDEC decodes {clip.codec} from {width}x{height} to {most}x{most}, not {clip.width}x{clip.height}"
    return ""


def check_conversion(conversion: TranscodeOptions, purpose: Purpose) -> None:
    """Refuse a conversion into what its purpose would not have.

    Raises:
        InputError: it makes H.264 of I-frames alone for a GPU, or AV1 for one without.
    """
    if purpose == "any":
        return
    if conversion.codec == "h264" and conversion.gop == 1:
        raise InputError(
            "a GPU does not decode H.264 of I-frames alone: give --gop 2 or more, --codec hevc, or --for any"
        )
    if conversion.codec == "av1" and purpose == "gpu-no-av1":
        raise InputError("--codec av1 makes what --for gpu-no-av1 rules out: choose another codec")


def _target(clip: StoredClip) -> Target | None:
    """The clip's own codec if that has a form that suits, HEVC where H.264 would lose bits or size, else H.264."""
    largest = max(clip.width, clip.height)
    if largest > _LIMITS["hevc"][2] or clip.width < _LIMITS["h264"][0] or clip.height < _LIMITS["h264"][1]:
        return None  # no codec has a decoder for such sizes, and none is changed without being asked
    if clip.codec == "hevc" and min(clip.width, clip.height) >= _LIMITS["hevc"][0]:
        return "hevc"
    if clip.codec == "vp9" and min(clip.width, clip.height) >= _LIMITS["vp9"][0]:
        return "vp9"
    if largest > _LIMITS["h264"][2] or (clip.codec == "av1" and clip.pix_fmt == _TEN_BITS):
        return "hevc"
    return "h264"
