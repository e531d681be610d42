"""One table of the clips that NVDEC decodes, in sessions and through DALI; it decides the route of each clip in a GPU
run, and which clips packing transcodes.

It is used by packing (which clips to transcode), `streamvid info` (which clips a GPU run decodes on the CPU), the
preflight check of the loaders (`streamvid.loader.preflight`) and the GPU decoder (`streamvid.decode.gpu`). Its sources
are docs/dali-notes.md for faults of DALI, and `cuvidGetDecoderCaps` on an H200 for formats and sizes.
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
    """The decoder of a clip in a GPU run.

    Attributes:
        NVDEC: persistent decode sessions; without them DALI, or the CPU if `Support.dali` has a reason against DALI.
        DALI: DALI's `fn.decoders.video`, which also uses NVDEC.
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
        reason: why the GPU does not decode the clip; packing transcodes clips that have a reason. It never names the
            clip or its size, so that clips can be counted by reason.
        dali: why DALI's decoder does not decode it, or not correctly; "" if it does.
    """

    route: Route
    reason: str = ""
    dali: str = ""


@dataclass(frozen=True)
class _Caps:
    """NVDEC's capabilities for a codec.

    Attributes:
        sessions: bit depths for decode sessions, tested against FFmpeg in tests/gpu.
        dali: bit depths for DALI's decoder.
        min_width, min_height, max_side: limits of the frame size, in pixels.
        macroblocks: most macroblocks (16x16 pixels) in a frame; 0: no limit besides `max_side`.
        odd: whether sessions decode odd sizes.
    """

    sessions: tuple[int, ...]
    dali: tuple[int, ...]
    min_width: int
    min_height: int
    max_side: int
    macroblocks: int = 0
    odd: bool = False


# Sizes as cuvidGetDecoderCaps reports them on an H200; for AV1, which it does not have, as NVIDIA's support matrix
# gives them for other chips.
_CAPS: Final = {
    "h264": _Caps((8,), (8,), 48, 16, 4096),
    "hevc": _Caps((8, 10, 12), (8, 10), 144, 144, 8192),
    "vp8": _Caps((8,), (8,), 48, 16, 4096),
    "vp9": _Caps((8, 10, 12), (8,), 128, 128, 8192, odd=True),
    "av1": _Caps((), (8, 10), 128, 128, 8192),
    "mpeg4": _Caps((8,), (8,), 48, 16, 2048, macroblocks=8192, odd=True),
}
_BIT_DEPTHS: Final = {"yuv420p": 8, "yuvj420p": 8, "yuv420p10le": 10, "yuv420p12le": 12}
NOT_IN_SESSIONS: Final = "decode sessions are not known to decode it rightly"
"""Reason of rows with the route DALI."""


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
        all_intra: whether it has more than one packet, all of them random access points.
        has_av1: whether the chip has an AV1 decoder; A100, H100 and H200 do not.
    """
    found = traits.split(",")
    if codec in image.CODECS:
        return Support(Route.IMAGE)
    if codec == "mjpeg":
        return Support(Route.CPU, "a core decodes Motion JPEG faster than the one engine for it")
    if UNORDERED in found:
        # NVDEC outputs frames in display order without telling the packet of each; FFmpeg tells it.
        return Support(Route.CPU, "the presentation order of its frames is not known")
    caps, bit_depth = _CAPS.get(codec), _BIT_DEPTHS.get(pix_fmt)
    if caps is None:
        return Support(Route.CPU, f"NVDEC has no decoder for {codec}")
    if bit_depth is None:
        return Support(Route.CPU, f"decode sessions take 4:2:0 with 8, 10 or 12 bits, not {pix_fmt}")
    if "lead-in" in found and codec in ("h264", "hevc"):
        return Support(Route.CPU, "it does not begin with a picture that a decoder can start from")
    if codec == "h264" and bit_depth > 8:
        return Support(Route.CPU, f"NVDEC has no decoder for {bit_depth}-bit H.264")
    macroblocks = -(-width // 16) * -(-height // 16)
    small, large = width < caps.min_width or height < caps.min_height, max(width, height) > caps.max_side
    if small or large or (caps.macroblocks and macroblocks > caps.macroblocks):
        smallest, largest = f"{caps.min_width}x{caps.min_height}", f"{caps.max_side}x{caps.max_side}"
        most = f" and {caps.macroblocks} macroblocks" if caps.macroblocks else ""
        return Support(Route.CPU, f"NVDEC decodes {codec} from {smallest} to {largest}{most} alone")
    if codec == "av1" and not has_av1:
        return Support(Route.CPU, "GPUs such as A100, H100 and H200 have no AV1 decoder")
    odd, again = bool(width % 2 or height % 2), "show-existing" in found
    dali = ""
    if odd:
        dali = "DALI garbles frames with an odd width or height"
    elif again or "superframes" in found or "non-displayed" in found:
        dali = "DALI returns wrong frames of videos with non-displayed pictures"
    elif codec == "h264" and all_intra:
        dali = "DALI fails on H.264 of I-frames alone"
    elif bit_depth not in caps.dali:
        dali = f"DALI is not known to decode {codec} of {bit_depth} bits rightly"
    if again:  # no session outputs such a frame
        return Support(Route.CPU, "NVDEC does not show a picture again", dali)
    if bit_depth in caps.sessions and (caps.odd or not odd):
        return Support(Route.NVDEC, dali=dali)
    return Support(Route.CPU, dali, dali) if dali else Support(Route.DALI)


def check(clip: StoredClip, purpose: Purpose) -> tuple[str, Target | None]:
    """Decide whether a remuxed clip has to be transcoded for its purpose.

    Args:
        clip: the stored clip, whose bitstream has been parsed.
        purpose: "gpu": any chip; AV1 is kept, because newer chips decode it. "gpu-no-av1": a chip without AV1, such as
            A100, H100 and H200. "any": no clip is transcoded.

    Returns:
        Why a GPU would not decode the clip, "" if it would; and the codec to transcode it to, None if that does not
        help or is not wanted.
    """
    all_intra = len(clip.index) > 1 and bool(np.all(clip.index.flags & RANDOM_ACCESS))
    reason = support(
        clip.codec, clip.pix_fmt, clip.width, clip.height,
        traits=clip.traits, all_intra=all_intra, has_av1=purpose == "gpu",
    ).reason  # fmt: skip
    # Motion JPEG is kept: the CPU decodes it well, and any other codec would be a lossy copy.
    keep = not reason or purpose == "any" or clip.codec == "mjpeg"
    return reason, None if keep else _target(clip)


def check_transcode(options: TranscodeOptions, purpose: Purpose) -> None:
    """Refuse to transcode to a codec that the purpose rules out.

    Raises:
        InputError: the codec is AV1, for GPUs without AV1.
    """
    if options.codec == "av1" and purpose == "gpu-no-av1":
        raise InputError("--codec av1 contradicts --for gpu-no-av1: choose another codec")


def _target(clip: StoredClip) -> Target | None:
    """The codec to transcode to: the clip's own if NVDEC supports it in another format, HEVC if H.264 would lose bit
    depth or size, otherwise H.264."""
    h264, hevc, vp9 = _CAPS["h264"], _CAPS["hevc"], _CAPS["vp9"]
    shorter, longer = sorted((clip.width, clip.height))
    if longer > hevc.max_side or clip.width < h264.min_width or clip.height < h264.min_height:
        return None  # NVDEC decodes such sizes in no codec, and frames are not resized unasked
    if clip.codec == "hevc" and shorter >= hevc.min_width:
        return "hevc"
    if clip.codec == "vp9" and shorter >= vp9.min_width:
        return "vp9"
    if longer > h264.max_side or (clip.codec == "av1" and _BIT_DEPTHS.get(clip.pix_fmt) == 10):
        return "hevc"
    return "h264"
