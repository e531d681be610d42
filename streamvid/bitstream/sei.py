"""Supplemental enhancement information (SEI) of H.264 and HEVC that decides which pixels a decoder outputs.

Sections are those of ITU-T H.264: 7.3.2.3.1 (SEI message) and annex D. HEVC has the same syntax.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from streamvid.bitstream.bits import BitReader
from streamvid.bitstream.packet_kind import Samples

SEI: Final = 6
"""nal_unit_type of H.264."""
PREFIX_SEI: Final = 39
"""nal_unit_type of HEVC; FFmpeg reads film grain from these alone."""
_USER_DATA: Final = 4
_RECOVERY_POINT: Final = 6
_FILM_GRAIN: Final = 19
_AOM_GRAIN: Final = bytes((0xB5, 0x58, 0x90, 0x00, 0x01))
"""The first bytes of AOMedia's film grain in user data registered by ITU-T T.35: country, provider, its code."""
_GRAINED: Final = Samples(across=True, down=True, depth=8)
"""The only pictures to which FFmpeg adds grain by film grain characteristics."""
_X264: Final = b"x264 - core "
_X264_VERSION: Final = re.compile(_X264 + rb"(\d{1,4})")


def messages(payload: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and bytes of the messages in a SEI NAL unit, given without its header; what is cut off is left out."""
    data, at = payload.replace(b"\0\0\3", b"\0\0"), 0
    with suppress(IndexError):
        while at + 2 <= len(data):
            numbers = [0, 0]  # payloadType, payloadSize
            for n in range(2):
                while data[at] == 0xFF:  # ff_byte
                    numbers[n], at = numbers[n] + 255, at + 1
                numbers[n], at = numbers[n] + data[at], at + 1
            kind, begin, at = numbers[0], at, at + numbers[1]
            if at <= len(data):
                yield kind, data[begin:at]


def recovery_frames(payload: bytes) -> int | None:
    """recovery_frame_cnt (D.1.8), if one of the messages is a recovery point. Raises ValueError if it ends early."""
    return next((BitReader(data).ue() for kind, data in messages(payload) if kind == _RECOVERY_POINT), None)


def adds_grain(payloads: Iterable[bytes], samples: Samples | None) -> bool:
    """Whether messages have FFmpeg add film grain to pictures (D.1.21): also to later ones, if the message persists.

    Args:
        payloads: SEI NAL units without their headers.
        samples: chroma and depth of the pictures; None if unknown.
    """
    found = [message for payload in payloads for message in messages(payload)]
    return any(
        (kind == _FILM_GRAIN and samples in (_GRAINED, None)) or (kind == _USER_DATA and data.startswith(_AOM_GRAIN))
        for kind, data in found
    )


def x264_version(units: Iterable[memoryview]) -> int | None:
    """The version of x264 from its message, among the NAL units of the first packet of a stream; None if there is
    none."""
    for unit in units:
        if unit[0] & 31 == SEI and len(unit) > len(_X264) and (found := _X264_VERSION.search(unit)):
            return int(found[1])
    return None
