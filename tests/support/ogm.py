"""Writes OGM: Ogg with the codecs of AVI, as ogmmerge made it of films, and as VLC does."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

_KEY_FRAME, _LACED = b"\x08", 255


def write_ogm(path: Path, packets: Sequence[bytes], *, fourcc: bytes, size: tuple[int, int], per_page: int = 1) -> Path:
    """Write packets, in decode order, at 25 frames a second.

    Args:
        size: width and height of the frames.
        per_page: packets of a page, which states the time of the last one alone: its number.
    """
    header = struct.pack("<B8s4sIqqIIHHII", 1, b"video", fourcc, 52, 400_000, 1, 1, 1 << 16, 24, 0, *size)
    pages = [_page([header], 0, 0, flags=2)]
    framed = [(b"\0" if number else _KEY_FRAME) + packet for number, packet in enumerate(packets)]
    for first in range(0, len(framed), per_page):
        of_page = framed[first : first + per_page]
        pages.append(_page(of_page, len(pages), first + len(of_page) - 1))
    path.write_bytes(b"".join(pages))
    return path


def _page(packets: Sequence[bytes], number: int, time: int, *, flags: int = 0) -> bytes:
    """A page of whole packets (RFC 3533, 6)."""
    lacing = b"".join(b"\xff" * (len(packet) // _LACED) + bytes([len(packet) % _LACED]) for packet in packets)
    head = struct.pack("<4sBBqIIIB", b"OggS", 0, flags, time, 7, number, 0, len(lacing))
    page = head + lacing + b"".join(packets)
    crc = 0
    for byte in page:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ (0x04C11DB7 if crc >> 31 else 0)) & 0xFFFFFFFF
    return page[:22] + struct.pack("<I", crc) + page[26:]
