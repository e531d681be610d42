"""What the headers of one compressed packet say, whatever its codec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class StatedColors(NamedTuple):
    """What a VUI says of colours (annex E of ITU-T H.264 and H.265), by the numbers of ITU-T H.273.

    Attributes:
        primaries, matrix: 2 where it does not say.
        full_range: None where it does not say.
        location: chroma_sample_loc_type_top_field; None where it does not say.
    """

    primaries: int = 2
    matrix: int = 2
    full_range: bool | None = None
    location: int | None = None


@dataclass(frozen=True, slots=True)
class PacketKind:
    """What the headers of one packet say.

    Attributes:
        random_access: decoding may start here.
        disposable: no packet of the same or a lower temporal layer refers to it.
        skipped_leading: refers to packets before the random access packet that it follows (HEVC RASL).
        temporal_id: HEVC's TemporalId, 0 for all other codecs.
        hidden: decodes to no frame that is output; later packets may refer to it (show_frame 0), or shows
            the one before again (vop_coded 0).
        show_existing: outputs a picture that an earlier packet decoded without output (VP9's show_existing_frame).
        superframe: holds several pictures of which only the last is output (VP9).
        no_refresh: VP9: updates no reference picture.
        resets_context: VP9: resets the entropy context, so that it depends on earlier packets through reference
            pictures alone.
        order: H.264 and HEVC: rank in output order: of two packets, the picture of the one with the lower number is
            output first; None if that is not known, or there is no output. 0 for all other codecs.
        broken: H.264 and HEVC: decoders refuse it, as its NAL units do not fit. MPEG-4: it holds several pictures.
        lone_field: H.264: it holds one field of a frame, whose other is in a packet of its own.
        colors: H.264 and HEVC: those of a sequence parameter set in it; None if it has none.
    """

    random_access: bool = False
    disposable: bool = False
    skipped_leading: bool = False
    temporal_id: int = 0
    hidden: bool = False
    show_existing: bool = False
    superframe: bool = False
    no_refresh: bool = False
    resets_context: bool = False
    order: int | None = 0
    broken: bool = False
    lone_field: bool = False
    colors: StatedColors | None = None


Classifier = Callable[[memoryview], PacketKind]
"""Classifies the packets of one track, which must come in decode order."""
