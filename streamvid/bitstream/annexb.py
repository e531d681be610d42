"""H.264 and HEVC as hardware decoders take them: NAL units behind start codes instead of their lengths, and the
parameter sets in band.

ISO/IEC 14496-15 says how MP4 files hold both (avcC in 5.3.3.1, hvcC in 8.3.3.1), Annex B of ITU-T H.264 and H.265 what
start codes are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from streamvid.arrays import Int64, UInt8
from streamvid.bitstream import nal
from streamvid.mp4.boxes import codec_configuration

START_CODE: Final = b"\0\0\0\1"
_BOXES: Final = {"h264": b"avcC", "hevc": b"hvcC"}
CODECS: Final = tuple(_BOXES)


@dataclass(frozen=True)
class Parameters:
    """What a sample description says that a decoder must know.

    Attributes:
        sets: the parameter sets, each behind a start code, in the order of the box.
        length_size: bytes of the length before each NAL unit in the MP4: 1, 2 or 4.
        bits: of luma samples: 8 unless the box says otherwise.
    """

    sets: bytes
    length_size: int
    bits: int


@lru_cache(maxsize=1024)
def parameters(codec: str, stsd: bytes) -> Parameters:
    """Take the parameter sets out of a sample description.

    Args:
        codec: "h264" or "hevc".
        stsd: the sample description box, whole.

    Raises:
        ValueError: it has no such box, or one that is cut off.
    """
    kind = _BOXES[codec]
    box = codec_configuration(stsd, kind)
    try:
        return _avcc(box) if codec == "h264" else _hvcc(box)
    except IndexError as error:
        raise ValueError(f"the {kind.decode()} box is cut off") from error


def _avcc(box: bytes) -> Parameters:
    sets: list[bytes] = []
    at = _take(box, 6, box[5] & 31, sets)
    at = _take(box, at + 1, box[at], sets)
    # Profiles of 100 and more go on with chroma format and bit depth.
    bits = 8 + (box[at + 1] & 7) if len(box) >= at + 4 and box[1] not in (66, 77, 88) else 8
    return Parameters(b"".join(sets), (box[4] & 3) + 1, bits)


def _hvcc(box: bytes) -> Parameters:
    sets: list[bytes] = []
    at = 23
    for _ in range(box[22]):
        if at + 3 > len(box):
            raise IndexError
        at = _take(box, at + 3, int.from_bytes(box[at + 1 : at + 3], "big"), sets)
    return Parameters(b"".join(sets), (box[21] & 3) + 1, 8 + (box[17] & 7))


def _take(box: bytes, at: int, count: int, sets: list[bytes]) -> int:
    """Append so many NAL units with 16-bit lengths, from `at` on; returns where they end."""
    for _ in range(count):
        size = box[at] << 8 | box[at + 1]
        if at + 2 + size > len(box):
            raise IndexError
        sets.append(START_CODE + box[at + 2 : at + 2 + size])
        at += 2 + size
    return at


def to_annex_b(data: UInt8, sizes: Int64, length_size: int) -> list[bytes]:
    """Put start codes in the place of lengths.

    Args:
        data: uint8 [bytes], packets one after another.
        sizes: int64 [packets].
        length_size: as in `Parameters`.

    Returns:
        the packets.

    Raises:
        ValueError: a length leads out of its packet.
    """
    packets = []
    end = 0
    whole = data.tobytes()
    for size in sizes.tolist():
        at, end = end, end + size
        units: list[bytes] = []
        while at < end:
            start = at + length_size
            at = start + int.from_bytes(whole[at:start], "big")
            if at > end or at == start:
                raise ValueError("a NAL unit does not end within its packet")
            units += (START_CODE, whole[start:at])
        packets.append(b"".join(units))
    return packets


def begins_anew(packet: bytes, codec: str) -> bool:
    """Whether nothing from this packet on, leading pictures included, refers to anything before it: an IDR picture.

    Args:
        packet: as `to_annex_b` makes them.
        codec: "h264" or "hevc".
    """
    # The first slice of a picture decides; delimiters, parameter sets and the like may come before it.
    return next((kind in nal.IDR[codec] for kind, _ in _units(packet, codec) if kind in nal.SLICES[codec]), False)


def sets_in_band(packet: bytes, codec: str) -> bytes:
    """The parameter sets that come before a packet's picture, each behind a start code; empty if there are none.

    Args:
        packet, codec: as of `begins_anew`.
    """
    sets = []
    for kind, unit in _units(packet, codec):
        if kind in nal.SLICES[codec]:
            break
        if kind in nal.PARAMETER_SETS[codec]:
            sets.append(START_CODE + unit)
    return b"".join(sets)


def _units(packet: bytes, codec: str) -> Iterator[tuple[int, bytes]]:
    """NAL units with their types, up to the first of a picture."""
    at = len(START_CODE)
    while at < len(packet):
        kind = nal.kind(packet[at], codec)
        if kind in nal.SLICES[codec]:
            yield kind, b""
            return
        end = packet.find(START_CODE, at)
        end = len(packet) if end < 0 else end
        yield kind, packet[at:end]
        at = end + len(START_CODE)
