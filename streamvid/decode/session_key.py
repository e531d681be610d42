"""The decoder configuration of a clip: which clips can share a decode session, and the headers they begin with."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from streamvid.bitstream.annexb import NAL_SYNTAX, dpb_requirement, parameter_sets
from streamvid.bitstream.ffmpeg_fault import ffmpeg_is_exact
from streamvid.bitstream.mpeg4 import video_object_layers
from streamvid.bitstream.nal import DpbRequirement
from streamvid.color.render import PlaneFormat
from streamvid.mp4.sample_entry import codec_configuration, decoder_specific_info
from streamvid.video.codec_context import MAX_REORDER
from streamvid.video.packet_selection import EncodedSlice

_ALIKE: Final = DpbRequirement("", 0, MAX_REORDER)
"""The requirement for codecs other than H.264 and HEVC, whose streams do not differ in it."""


class SessionKey(NamedTuple):
    """Decoder configuration: streams with equal keys can share a decode session that holds enough DPB frames.

    Attributes:
        codec: as in docs/format.md.
        width, height: of decoded frames, in pixels.
        bit_depth: bits per sample, 8, 10 or 12.
        group: as `streamvid.bitstream.nal.DpbRequirement.group`. For MPEG-4, whether the stream states its version: if
            not, NVIDIA's parser takes that of the stream before, unless it was drained.
        exact: whether FFmpeg's samples are those of NVDEC, bit for bit.
    """

    codec: str
    width: int
    height: int
    bit_depth: int
    group: str
    exact: bool = True

    @property
    def pitch(self) -> int:
        """Samples from a line of a decoded NV12 or P016 surface to the next: chroma interleaves two planes."""
        return -(-self.width // 2) * 2

    @property
    def surface_bytes(self) -> int:
        """Size of a decoded surface, in bytes: `height` lines of luma, then half as many, rounded up, of chroma."""
        return self.luma_bytes // self.height * (self.height + -(-self.height // 2))

    @property
    def luma_bytes(self) -> int:
        """Size of the luma of a decoded surface, which its chroma follows, in bytes."""
        return self.height * self.pitch * (2 if self.bit_depth > 8 else 1)

    @property
    def form(self) -> PlaneFormat:
        """The planes of a decoded surface."""
        return PlaneFormat(self.height, self.width, (2, 2), self.bit_depth)


@lru_cache(maxsize=4096)
def session_key(codec: str, stsd: bytes, width: int, height: int) -> tuple[SessionKey, DpbRequirement]:
    """The decoder configuration of a clip, and its DPB requirements.

    Args:
        codec, stsd: as in docs/format.md.
        width, height: of decoded frames, in pixels.

    Raises:
        ValueError: as `streamvid.bitstream.annexb.parameter_sets`.
    """
    if codec not in NAL_SYNTAX:
        return SessionKey(codec, width, height, stream_bit_depth(codec, stsd), "", exact=False), _ALIKE
    settings = parameter_sets(codec, stsd)
    required = dpb_requirement(codec, settings.annex_b)
    exact = ffmpeg_is_exact(codec, settings.annex_b)
    return SessionKey(codec, width, height, settings.bit_depth, required.group, exact), required


def stream_bit_depth(codec: str, stsd: bytes) -> int:
    """Bits per sample from a sample description; 8 for codecs that NVDEC decodes at no other depth.

    Raises:
        ValueError: the sample description is not of this codec.
    """
    if codec in NAL_SYNTAX:
        return parameter_sets(codec, stsd).bit_depth
    if codec == "vp9":
        return codec_configuration(stsd, b"vpcC")[6] >> 4  # bitDepth, 2.2 of the VP Codec ISO Media File Format Binding
    return 8


@lru_cache(maxsize=4096)
def version_group(headers: bytes) -> str:
    """`SessionKey.group` of an MPEG-4 stream with these headers."""
    return "" if all(layer.versioned for layer in video_object_layers(headers)) else "without version"


def stream_headers(codec: str, stsd: bytes) -> bytes:
    """The headers that a decoder needs before the first packet, and that packets need not repeat: parameter sets in
    Annex B, and the headers of MPEG-4; empty for other codecs.

    Raises:
        ValueError: the sample description has no headers.
    """
    if codec in NAL_SYNTAX:
        return parameter_sets(codec, stsd).annex_b
    return decoder_specific_info(stsd) if codec == "mpeg4" else b""


def surface_form(encoded: EncodedSlice) -> PlaneFormat:
    """The planes of a slice's surfaces."""
    key, _ = session_key(encoded.codec, encoded.stsd, encoded.width, encoded.height)
    return key.form
