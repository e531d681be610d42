"""Classification of compressed packets by codec: where decoding may start, and which packets may be left out.

Container flags are hints that files get wrong; these functions read the bitstream instead. They read only headers,
never coded pictures. A packet whose header is not understood counts neither as a random access point nor as disposable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from streamvid.arrays import Int64
from streamvid.bitstream import av1, h264, hevc, image, jpeg, mpeg4, vpx
from streamvid.bitstream.annexb import NAL_SYNTAX
from streamvid.bitstream.nal import known_sets, split_packet
from streamvid.bitstream.packet_kind import Classifier, PacketKind
from streamvid.mp4.sample_entry import codec_configuration

_WITH_STATE: Final[dict[str, Callable[[bytes], Classifier]]] = {
    "h264": h264.classifier,
    "hevc": hevc.classifier,
    "av1": av1.classifier,
    "mpeg4": mpeg4.classifier,
    "mjpeg": jpeg.classifier,
}
_WITHOUT_STATE: Final[dict[str, Classifier]] = {
    "vp8": vpx.classify_vp8,
    "vp9": vpx.classify_vp9,
    **dict.fromkeys(image.CODECS, image.classify),
}


def classifier(codec: str, stsd: bytes) -> Classifier:
    """The function that classifies packets of a track, which must come in decode order.

    The result depends on a packet and earlier ones. After the last packet, `finalize_disposable` completes the results.

    Args:
        codec: as in docs/format.md, such as "h264".
        stsd: the track's sample description box, which has the size of NAL unit lengths.

    Raises:
        ValueError: the codec is unknown, or the sample description lacks the codec's configuration box.
    """
    if codec in _WITH_STATE:
        return _WITH_STATE[codec](stsd)
    if codec not in _WITHOUT_STATE:
        raise ValueError(f"unknown codec {codec!r}")
    return _WITHOUT_STATE[codec]


WITH_SETS: Final = ("h264", "hevc", "mpeg4")
"""Codecs with parameter sets, of which those in band are valid until others come."""


def has_sets(codec: str, stsd: bytes, packet: bytes) -> bool:
    """Whether a packet has parameter sets, the same as in the sample description or others."""
    if codec == "mpeg4":
        return bool(mpeg4.sections(mpeg4.headers_of(packet)))
    if codec not in NAL_SYNTAX:
        return False
    syntax = NAL_SYNTAX[codec]
    units = split_packet(memoryview(packet), syntax.length_size(codec_configuration(stsd, syntax.configuration)))
    return any(syntax.unit_type(unit[0]) in syntax.parameter_sets for unit in units)


def tells_sets(codec: str, stsd: bytes) -> Callable[[memoryview], bool]:
    """A function of the packets of a track, in decode order, that returns whether the packets so far leave a decoder
    with other parameter sets than the sample description's, or with an early version of x264. False for codecs without
    parameter sets."""
    if codec not in ("h264", "hevc"):
        return lambda packet: False
    try:
        of = h264 if codec == "h264" else hevc
        known, _, length_size = known_sets(of.SYNTAX, stsd, of.parameter_sets, of.set_number)
    except ValueError:  # without a box, packets are in Annex B, and each run begins with its sets
        return lambda packet: False

    def tells(packet: memoryview) -> bool:
        units = split_packet(packet, length_size)
        known.take(units)
        return bool(known.changed) or (codec == "h264" and h264.is_by_early_x264(units))

    return tells


def classify(
    codec: str, stsd: bytes, packets: Iterable[memoryview], by: Callable[[str, bytes], Classifier] = classifier
) -> list[PacketKind]:
    """Classify a whole track, in decode order. Arguments and errors as in `by`."""
    return finalize_disposable(codec, [*map(by(codec, stsd), packets)])


def finalize_disposable(codec: str, kinds: list[PacketKind]) -> list[PacketKind]:
    """Complete `PacketKind.disposable`, which depends on other packets: on later ones in VP9 and Motion JPEG (see
    `vpx.finalize_disposable`, `jpeg.finalize`), on the highest sub-layer in HEVC.

    A sub-layer non-reference picture of HEVC is not referred to within its own sub-layer, but may be by higher
    sub-layers (ITU-T H.265, 7.4.2.2), so only pictures of the highest sub-layer present are certain to be disposable.

    Args:
        codec: as in docs/format.md.
        kinds: the kinds of all packets of a track, in decode order, from a `classifier`.
    """
    if codec == "vp9":
        return vpx.finalize_disposable(kinds)
    if codec == "mjpeg":
        return jpeg.finalize(kinds)
    highest = max((kind.temporal_id for kind in kinds), default=0)
    return [
        replace(kind, disposable=False) if kind.disposable and kind.temporal_id != highest else kind for kind in kinds
    ]


def in_output_order(codec: str, kinds: Sequence[PacketKind], times: Int64) -> bool:
    """Whether a decoder outputs pictures in the order of their times; False if unknown.

    Args:
        kinds: the kinds of packets in decode order.
        times: int64 [packets], presentation times.
    """
    by_time = np.argsort(times, kind="stable").tolist()
    if codec == "mpeg4":
        is_b = [kind.disposable for kind in kinds]
        return not any(is_b) or mpeg4.output_order(is_b) == by_time
    if codec not in ("h264", "hevc"):
        return True
    order = [kinds[number].order for number in by_time if kinds[number].order is not None]
    return len(order) == len(kinds) and bool((np.diff(np.array(order)) > 0).all())
