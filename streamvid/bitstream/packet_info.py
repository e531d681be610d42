"""What a compressed packet is, from its first bytes: where decoding may start, and what nobody depends on.

Container flags are hints that files get wrong; these functions read the bitstream instead. They look at headers
only, never at coded pictures, and are written to fail towards "not a start, not disposable".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from streamvid.bitstream import nal
from streamvid.bitstream.av1 import TemporalUnits
from streamvid.bitstream.picture_order import H264Order, HevcOrder
from streamvid.mp4 import boxes

_VOP_START: Final = b"\x00\x00\x01\xb6"


@dataclass(frozen=True, slots=True)
class PacketKind:
    """What the headers of one packet say.

    Attributes:
        random_access: decoding may start here.
        disposable: nothing of the same or a lower temporal layer depends on it.
        skipped_leading: depends on what lies before the random access packet it follows (HEVC RASL).
        temporal_id: HEVC's TemporalId, 0 for all other codecs.
        silent: decodes to no frame: it only changes what later frames refer to.
        repeats: shows a picture that an earlier packet decoded and hid (VP9's show_existing_frame).
        packs: holds several pictures, all but the last of them not shown (VP9's superframes).
        refreshes_nothing: VP9: leaves no picture for later ones.
        resets: VP9: depends on nothing but pictures that those before it leave behind.
        order: H.264 and HEVC: of two packets, the lower one's picture comes out of a decoder first; None if that is not
            known. 0 for all other codecs.
    """

    random_access: bool = False
    disposable: bool = False
    skipped_leading: bool = False
    temporal_id: int = 0
    silent: bool = False
    repeats: bool = False
    packs: bool = False
    refreshes_nothing: bool = False
    resets: bool = False
    order: int | None = 0


Classifier = Callable[[memoryview], PacketKind]


def classifier(codec: str, stsd: bytes) -> Classifier:
    """The function that classifies packets of a track, which must come in decode order.

    It knows one packet and those before it; what it takes those behind it to know, `classify` adds.

    Args:
        codec: as in docs/format.md, such as "h264".
        stsd: the track's sample description box; tells how NAL units are framed.

    Raises:
        ValueError: unknown codec, or a sample description without the codec's configuration box.
    """
    if codec == "h264":
        # AVCDecoderConfigurationRecord, ISO/IEC 14496-15 5.3.3.1: lengthSizeMinusOne in the low bits of byte 4.
        length_size = (boxes.codec_configuration(stsd, b"avcC")[4] & 3) + 1
        h264 = H264Order(stsd)
        return lambda packet: _h264(packet, length_size, h264)
    if codec == "hevc":
        # HEVCDecoderConfigurationRecord, ISO/IEC 14496-15 8.3.3.1: lengthSizeMinusOne in the low bits of byte 21.
        length_size = (boxes.codec_configuration(stsd, b"hvcC")[21] & 3) + 1
        hevc = HevcOrder(stsd)
        return lambda packet: _hevc(packet, length_size, hevc)
    if codec == "av1":
        return _av1(stsd)
    simple: dict[str, Classifier] = {"mpeg4": _mpeg4, "mjpeg": _mjpeg, "vp8": _vp8, "vp9": _vp9}
    if codec not in simple:
        raise ValueError(f"unknown codec {codec!r}")
    return simple[codec]


def classify(codec: str, stsd: bytes, packets: Sequence[memoryview]) -> list[PacketKind]:
    """Classify a whole track, in decode order.

    What is disposable takes a look at other packets:

    - HEVC: a sub-layer non-reference picture is not used by its own sub-layer, but may be by higher ones (ITU-T H.265,
      7.4.2.2), so only those of the highest one present are certain to be disposable.
    - VP9: a frame that refreshes no picture still changes the probabilities, loop filter deltas, segmentation and
      motion vectors that the next frame builds on (VP9 specification 6.1.2, 7.2). A key frame or an error-resilient
      one builds on none of them, and resets them all for those behind it (setup_past_independence); so a frame that
      refreshes no picture is disposable if such a one is next in decode order.
    """
    of = classifier(codec, stsd)
    return finalize_disposable(codec, [of(packet) for packet in packets])


def finalize_disposable(codec: str, kinds: list[PacketKind]) -> list[PacketKind]:
    """What `classify` makes of the kinds that a `classifier` gave for a whole track."""
    if codec == "vp9":
        resets = [*(kind.resets for kind in kinds[1:]), False]
        return [replace(k, disposable=k.refreshes_nothing and r) for k, r in zip(kinds, resets, strict=False)]
    highest = max((kind.temporal_id for kind in kinds), default=0)
    return [
        replace(kind, disposable=False) if kind.disposable and kind.temporal_id != highest else kind for kind in kinds
    ]


def _nal_units(packet: memoryview, length_size: int) -> list[memoryview]:
    """The NAL units of a packet, without their lengths; what does not fit is left out."""
    units = []
    position, end = 0, len(packet)
    while position + length_size < end:
        length = int.from_bytes(packet[position : position + length_size], "big")
        position += length_size
        if length and position + length <= end:
            units.append(packet[position : position + length])
        position += length
    return units


def _h264(packet: memoryview, length_size: int, order: H264Order) -> PacketKind:
    """ITU-T H.264, 7.3.1: nal_ref_idc is bits 5–6, nal_unit_type bits 0–4 of the first byte."""
    units = _nal_units(packet, length_size)
    slices = [unit[0] for unit in units if unit[0] & 31 in nal.H264_SLICES]
    if not slices:
        return PacketKind(order=None)
    return PacketKind(
        random_access=slices[0] & 31 == nal.H264_IDR,
        disposable=all((first >> 5) & 3 == 0 for first in slices),
        order=order.look(units),
    )


def _hevc(packet: memoryview, length_size: int, order: HevcOrder) -> PacketKind:
    """ITU-T H.265, 7.3.1.2: nal_unit_type is bits 1–6 of the first byte, nuh_temporal_id_plus1 bits 0–2 of the
    second."""
    units = _nal_units(packet, length_size)
    for unit in units:
        if len(unit) < 2:
            break
        kind = (unit[0] >> 1) & 63
        layer = (unit[0] & 1) << 5 | unit[1] >> 3
        if kind in nal.HEVC_SLICES and layer == 0:
            return PacketKind(
                random_access=kind in nal.HEVC_RANDOM_ACCESS,
                disposable=kind in nal.HEVC_SUB_LAYER_NON_REFERENCE,
                skipped_leading=kind in nal.HEVC_RASL,
                temporal_id=max((unit[1] & 7) - 1, 0),
                order=order.look(units),
            )
    return PacketKind(order=None)


def _mpeg4(packet: memoryview) -> PacketKind:
    """ISO/IEC 14496-2, 6.2.5: vop_coding_type is the two bits after the start code: 0 I, 1 P, 2 B, 3 S."""
    data = bytes(packet)
    at = data.find(_VOP_START)
    if at < 0 or at + 4 >= len(data):
        return PacketKind()
    coding_type = data[at + 4] >> 6
    return PacketKind(random_access=coding_type == 0, disposable=coding_type == 2)


def _mjpeg(packet: memoryview) -> PacketKind:
    return PacketKind(random_access=True, disposable=True)


def _vp8(packet: memoryview) -> PacketKind:
    """RFC 6386, 9.1: of the first byte, bit 0 is 0 for a key frame, bit 4 is show_frame.

    Never disposable. A frame that refreshes no picture still changes the probabilities, unless refresh_entropy_probs is
    0, and the map of segments, if there is one: libvpx writes the one or the other into every such frame.
    """
    if len(packet) == 0:
        return PacketKind()
    return PacketKind(random_access=packet[0] & 1 == 0, silent=packet[0] >> 4 & 1 == 0)


def _vp9(packet: memoryview) -> PacketKind:
    """VP9 bitstream specification 6.2: frame_marker, profile, show_existing_frame, frame_type, show_frame,
    error_resilient_mode; in frames that are shown and no key frames then reset_frame_context and
    refresh_frame_flags."""
    if len(packet) == 0:
        return PacketKind()
    bits = int.from_bytes(bytes(packet[:4]).ljust(4, b"\0"), "big")
    profile = bits >> 29 & 1 | (bits >> 28 & 1) << 1
    place = 27 if profile < 3 else 26  # profile 3 has a reserved bit more
    shows_existing, not_key, shown, error_resilient = (bits >> (place - n) & 1 for n in range(4))
    # A superframe ends with a marker, 110 in its high bits; its last frame is shown. Alone, a frame may be hidden.
    alone = packet[-1] >> 5 != 0b110
    refresh = bits >> (place - (11 if error_resilient else 13)) & 255
    is_frame = bits >> 30 == 2 and not shows_existing
    return PacketKind(
        random_access=is_frame and not not_key,
        silent=not shows_existing and not shown and alone,
        repeats=bool(shows_existing),
        packs=bool(not alone and not shows_existing and not shown),
        refreshes_nothing=bool(is_frame and not_key and shown and alone and len(packet) >= 4 and refresh == 0),
        resets=bool(is_frame and (error_resilient or not not_key)),
    )


def _av1(stsd: bytes) -> Classifier:
    try:
        configuration = boxes.codec_configuration(stsd, b"av1C")
    except ValueError:
        configuration = b""  # the sequence header is in the stream as well
    units = TemporalUnits(configuration)

    def of(packet: memoryview) -> PacketKind:
        random_access, disposable = units.look(packet)
        return PacketKind(random_access=random_access, disposable=disposable)

    return of
