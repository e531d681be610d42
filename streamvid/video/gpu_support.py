"""What decodes a clip beside a GPU: one table of what NVDEC and DALI support, and what packing does about the rest.

It is asked by packing (what to transcode), `streamvid info` (what a GPU run decodes on the CPU), the preflight check of
the loaders (`streamvid.loader.preflight`) and the GPU decoder (`streamvid.decode.gpu`). Its sources: docs/dali-notes.md
for what DALI gets wrong, `cuvidGetDecoderCaps` on an H200 for formats and sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from streamvid.bitstream import image
from streamvid.errors import InputError
from streamvid.video.encoders import Target
from streamvid.video.frame_index import RANDOM_ACCESS
from streamvid.video.stored_clip import UNORDERED, StoredClip

if TYPE_CHECKING:
    from streamvid.video.transcode import TranscodeOptions

Purpose = Literal["gpu", "gpu-no-av1", "any"]


class Route(Enum):
    """Who decodes a clip in a GPU run.

    NVDEC: persistent decode sessions, or DALI where PyNvVideoCodec is not installed.
    DALI: DALI's `fn.decoders.video`, which drives NVDEC, too.
    IMAGE: DALI's `fn.decoders.image`: nvJPEG, and CPU threads for all but JPEG.
    CPU: FFmpeg; the frames are copied to the GPU. The loaders' fallback="error" refuses such clips.
    """

    NVDEC = "nvdec"
    DALI = "dali"
    IMAGE = "image"
    CPU = "cpu"


@dataclass(frozen=True)
class Support:
    """A row of the table.

    Attributes:
        route: who decodes the clip.
        reason: why the GPU does not decode it, or, with a route to it, why it may fail there. Packing transcodes clips
            that have a reason. Never names a clip or its size, so clips can be counted by it.
    """

    route: Route
    reason: str = ""


@dataclass(frozen=True)
class _Caps:
    """What NVDEC behind DALI decodes of a codec: bit depths, the smallest width and height, the largest side."""

    bit_depths: tuple[int, ...]
    min_width: int
    min_height: int
    max_side: int


# Sizes as cuvidGetDecoderCaps reports them on an H200; for AV1, which it does not have, as NVIDIA's support matrix
# gives them for other chips. For MPEG-4 they are not known.
_CAPS: Final = {
    "h264": _Caps((8,), 48, 16, 4096),
    "hevc": _Caps((8, 10), 144, 144, 8192),
    "vp8": _Caps((8,), 48, 16, 4096),
    "vp9": _Caps((8,), 128, 128, 8192),
    "av1": _Caps((8, 10), 128, 128, 8192),
    "mpeg4": _Caps((8,), 1, 1, 1 << 15),
}
_BIT_DEPTHS: Final = {"yuv420p": 8, "yuvj420p": 8, "yuv420p10le": 10}
_SESSION_CODECS: Final = ("h264", "hevc", "vp9")
_DITHER_BLOCK: Final = 4
"""Sessions take 10-bit frames only if both sides are multiples of this: NVDEC dithers in blocks of 4×4 samples, and
counts samples of the coded size that are not in the frame (`streamvid.color.nv12_kernel`)."""


def support(
    codec: str,
    pix_fmt: str,
    width: int,
    height: int,
    *,
    traits: str = "",
    all_intra: bool = False,
    has_av1: bool = True,
) -> Support:
    """Look a clip up in the table.

    Args:
        codec, pix_fmt, traits: as in docs/format.md.
        width, height: of decoded frames, in pixels.
        all_intra: it has more than one packet, and every one is a random access point.
        has_av1: the chip has an AV1 decoder; A100, H100 and H200 do not.
    """
    found = traits.split(",")
    if codec in image.CODECS:
        return Support(Route.IMAGE)
    if codec == "mjpeg":
        return Support(Route.CPU, "NVDEC has no decoder for Motion JPEG")
    if UNORDERED in found:
        # NVDEC hands out frames in display order without saying which packet each is of; FFmpeg says it.
        return Support(Route.CPU, "the presentation order of its frames is not known")
    caps, bit_depth = _CAPS.get(codec), _BIT_DEPTHS.get(pix_fmt)
    if caps is None:
        return Support(Route.CPU, f"NVDEC has no decoder for {codec}")
    if bit_depth is None:
        return Support(Route.CPU, f"NVDEC behind DALI decodes 4:2:0 with 8 or 10 bits, not {pix_fmt}")
    if width % 2 or height % 2:
        return Support(Route.CPU, "DALI garbles frames with an odd width or height")
    if "lead-in" in found and codec in ("h264", "hevc"):
        return Support(Route.CPU, "it does not begin with a picture that a decoder can start from")
    if "show-existing" in found or "superframes" in found:
        return Support(Route.CPU, "DALI returns wrong frames of VP9 with non-displayed pictures")
    if codec == "h264" and all_intra:
        return Support(Route.CPU, "DALI fails on H.264 of I-frames alone")
    if codec == "h264" and bit_depth > 8:
        return Support(Route.CPU, "NVDEC has no decoder for 10-bit H.264")
    if width < caps.min_width or height < caps.min_height or max(width, height) > caps.max_side:
        smallest, largest = f"{caps.min_width}x{caps.min_height}", f"{caps.max_side}x{caps.max_side}"
        return Support(Route.CPU, f"NVDEC decodes {codec} from {smallest} to {largest} alone")
    if codec == "av1" and not has_av1:
        return Support(Route.CPU, "GPUs such as A100, H100 and H200 have no AV1 decoder")
    if bit_depth not in caps.bit_depths:
        return Support(Route.DALI, f"10-bit {codec} is not known to decode rightly")
    step = _DITHER_BLOCK if bit_depth > 8 else 2
    in_session = codec in _SESSION_CODECS and width % step == 0 and height % step == 0
    return Support(Route.NVDEC if in_session else Route.DALI)


@dataclass(frozen=True)
class Remedy:
    """What packing does about a clip for its purpose.

    Attributes:
        problem: why a GPU would not decode it; empty if it would.
        codec: what to transcode it to; None where that does not help or is not asked for.
    """

    problem: str = ""
    codec: Target | None = None


def check(clip: StoredClip, purpose: Purpose) -> Remedy:
    """Whether a remuxed clip has to be transcoded for its purpose.

    Args:
        clip: as it was stored, its bitstream parsed.
        purpose: "gpu": any chip; AV1 is kept, as newer ones decode it. "gpu-no-av1": a chip without AV1, such as A100,
            H100 and H200. "any": nothing is transcoded.
    """
    all_intra = len(clip.index) > 1 and bool(np.all(clip.index.flags & RANDOM_ACCESS))
    reason = support(
        clip.codec, clip.pix_fmt, clip.width, clip.height,
        traits=clip.traits, all_intra=all_intra, has_av1=purpose == "gpu",
    ).reason  # fmt: skip
    # Motion JPEG is kept: the CPU decodes it well, and any other codec would be a lossy copy.
    keep = not reason or purpose == "any" or clip.codec == "mjpeg"
    return Remedy(reason, None if keep else _target(clip))


def check_transcode(options: TranscodeOptions, purpose: Purpose) -> None:
    """Refuse to transcode into what the purpose rules out.

    Raises:
        InputError: H.264 of I-frames alone for a GPU, or AV1 for one without.
    """
    if purpose == "any":
        return
    if options.codec == "h264" and options.gop == 1:
        raise InputError(
            "a GPU does not decode H.264 of I-frames alone: give --gop 2 or more, --codec hevc, or --for any"
        )
    if options.codec == "av1" and purpose == "gpu-no-av1":
        raise InputError("--codec av1 makes what --for gpu-no-av1 rules out: choose another codec")


def _target(clip: StoredClip) -> Target | None:
    """The clip's own codec if NVDEC takes it in another form, HEVC where H.264 would lose bits or size, else H.264."""
    h264, hevc, vp9 = _CAPS["h264"], _CAPS["hevc"], _CAPS["vp9"]
    shorter, longer = sorted((clip.width, clip.height))
    if longer > hevc.max_side or clip.width < h264.min_width or clip.height < h264.min_height:
        return None  # no codec has a decoder for such sizes, and frames are not resized without being asked
    if clip.codec == "hevc" and shorter >= hevc.min_width:
        return "hevc"
    if clip.codec == "vp9" and shorter >= vp9.min_width:
        return "vp9"
    if longer > h264.max_side or (clip.codec == "av1" and _BIT_DEPTHS.get(clip.pix_fmt) == 10):
        return "hevc"
    return "h264"
