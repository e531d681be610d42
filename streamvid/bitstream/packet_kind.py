"""The properties of a compressed packet from its headers, for all codecs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class StatedColors(NamedTuple):
    """The colour description of a VUI (annex E of ITU-T H.264 and H.265), with the numbers of ITU-T H.273.

    Attributes:
        primaries, matrix: 2 if unspecified.
        full_range: None if unspecified.
        location: chroma_sample_loc_type_top_field; None if unspecified.
    """

    primaries: int = 2
    matrix: int = 2
    full_range: bool | None = None
    location: int | None = None


class Samples(NamedTuple):
    """How a picture's samples are stored.

    Attributes:
        across, down: whether a chroma sample is for two luma samples, horizontally and vertically.
        depth: bits per luma sample.
        gray: whether there is no chroma.
    """

    across: bool
    down: bool
    depth: int
    gray: bool = False


@dataclass(frozen=True, slots=True)
class PacketKind:
    """Properties of one packet.

    Attributes:
        random_access: decoding may start here.
        disposable: no packet of the same or a lower temporal layer refers to it.
        skipped_leading: refers to packets before the random access packet that it follows (HEVC RASL).
        tells_sets: HEVC and MPEG-4: has parameter sets that later packets may need.
        temporal_id: HEVC's TemporalId, 0 for all other codecs.
        hidden: gives no new frame: it is decoded for reference only (show_frame 0), repeats the previous frame
            (vop_coded 0), or is a B-VOP that FFmpeg passes over.
        show_existing: outputs a picture that an earlier packet decoded without output (VP9's show_existing_frame).
        superframe: holds several pictures of which the first is not displayed (VP9).
        no_refresh: VP9: updates no reference picture.
        resets_context: VP9: resets the entropy context, so that it depends on earlier packets through reference
            pictures alone.
        order: H.264 and HEVC: output order: pictures with lower numbers are output first; None if unknown, or if there
            is no output. 0 for all other codecs.
        broken: H.264 and HEVC: decoders refuse it, because its NAL units do not fit its size. Motion JPEG: its picture
            has no scan.
        misfit: HEVC: `broken`, because a slice does not fit its parameter sets.
        zeroed: all but AV1 and Motion JPEG: `broken`, because many zeros lie in the midst of its picture.
        drops_prior: HEVC: begins a sequence, and decoders drop the pictures before it that are not output yet
            (NoOutputOfPriorPicsFlag).
        several: MPEG-4, VP9 and AV1: it holds several pictures that are displayed, and a packet is one frame.
        in_fields: MPEG-4: its VideoObjectLayer is interlaced.
        uneven: MPEG-4: a B-VOP of an interlaced stream at distances that depend on where decoding began.
        delay_unstated: MPEG-4: its VideoObjectLayer does not say whether there are B-VOPs, and FFmpeg expects none.
        lone_field: H.264: it holds one field of a frame; the other field is in another packet.
        colors: H.264 and HEVC: from a sequence parameter set in the packet; None if it has none.
        size: width and height of its picture, by its headers or earlier ones; None if they do not say.
        samples: their chroma and depth, likewise.
        adds_grain: H.264 and HEVC: has a SEI message by which decoders add film grain to this picture, and to others.
    """

    random_access: bool = False
    disposable: bool = False
    skipped_leading: bool = False
    tells_sets: bool = False
    temporal_id: int = 0
    hidden: bool = False
    show_existing: bool = False
    superframe: bool = False
    no_refresh: bool = False
    resets_context: bool = False
    order: int | None = 0
    broken: bool = False
    misfit: bool = False
    zeroed: bool = False
    drops_prior: bool = False
    several: bool = False
    in_fields: bool = False
    uneven: bool = False
    delay_unstated: bool = False
    lone_field: bool = False
    colors: StatedColors | None = None
    size: tuple[int, int] | None = None
    samples: Samples | None = None
    adds_grain: bool = False


Classifier = Callable[[memoryview], PacketKind]
"""Classifies the packets of one track, which must come in decode order."""
