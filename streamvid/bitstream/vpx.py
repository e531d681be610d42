"""VP8 (RFC 6386) and VP9 (VP9 bitstream specification): classification of packets, and VP8's sample description."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Final

from streamvid.bitstream.bits import BitReader
from streamvid.bitstream.packet_kind import PacketKind, Samples, StatedColors
from streamvid.mp4 import boxes
from streamvid.mp4.sample_entry import visual_sample_description

_SUPERFRAME_MARKER: Final = 0b110
_KEY_FRAME_TAG: Final = 10
"""Bytes of a VP8 key frame before its compressed header (RFC 6386, 9.1)."""
_FLAG_BYTES: Final = 2
"""Bytes of the compressed header that are enough for its first flags."""


def classify_vp8(packet: memoryview) -> PacketKind:
    """Classify a packet by its first byte: bit 0 is 0 for a key frame, and bit 4 is show_frame (RFC 6386, 9.1).

    Decoding cannot start at a key frame that keeps the segment map of the frame before it.

    No packet is disposable: a frame that refreshes no picture still changes the probabilities, unless
    refresh_entropy_probs is 0, and the segment map, if there is one. libvpx writes one of these into every such frame.
    """
    if len(packet) == 0:
        return PacketKind()
    size = None
    with suppress(ValueError):
        size = next(iter(coded_sizes("vp8", bytes(packet[:10]))), None)
    is_key = packet[0] & 1 == 0
    starts = is_key and not _keeps_segments(bytes(packet[_KEY_FRAME_TAG : _KEY_FRAME_TAG + _FLAG_BYTES]))
    return PacketKind(random_access=starts, hidden=packet[0] >> 4 & 1 == 0, size=size)


def _keeps_segments(header: bytes) -> bool:
    """Whether a key frame has segments without a map of them: color_space, clamping_type, segmentation_enabled and
    update_mb_segmentation_map (9.2, 9.3), coded at even probability by the boolean coder (7.3)."""
    value, span, place, flags = int.from_bytes(header.ljust(_FLAG_BYTES, b"\0"), "big"), 255, 8 * _FLAG_BYTES - 8, []
    for _ in range(4):
        split = (span + 1) // 2
        flags.append(value >= split << place)
        value, span = (value - (split << place), span - split) if flags[-1] else (value, split)
        while span < 128:
            span, place = 2 * span, place - 1
    return flags[2] and not flags[3]


def classify_vp9(packet: memoryview) -> PacketKind:
    """Read the start of uncompressed_header (6.2): frame_marker, profile, show_existing_frame, frame_type, show_frame,
    error_resilient_mode; then, in displayed frames that are no key frames, reset_frame_context, refresh_frame_flags,
    and whether the size is that of the first reference (found_ref).

    `finalize_disposable` finds the disposable frames.
    """
    if len(packet) == 0:
        return PacketKind()
    bits, place = _first_bits(packet)
    shows_existing, not_key, shown, error_resilient = (bits >> (place - n) & 1 for n in range(4))
    # A superframe ends with a marker; usually only its last frame is displayed, regardless of show_frame of the first.
    superframe = packet[-1] >> 5 == _SUPERFRAME_MARKER
    displayed = sum(map(_is_displayed, _vp9_frames(bytes(packet)))) if superframe else shows_existing or shown
    refresh = bits >> (place - (11 if error_resilient else 13)) & 255
    is_frame = bits >> 30 == 2 and not shows_existing
    is_key = is_frame and not not_key
    colors = samples = size = None
    if is_key or (is_frame and shown and not bits >> (place - (24 if error_resilient else 26)) & 1):
        with suppress(ValueError):
            colors, samples, size = _vp9_format(packet)
    return PacketKind(
        random_access=is_key,
        hidden=displayed == 0,
        show_existing=bool(shows_existing),
        superframe=bool(superframe and not shows_existing and not shown),
        no_refresh=bool(is_frame and not_key and shown and not superframe and len(packet) >= 4 and refresh == 0),
        resets_context=bool(is_frame and (error_resilient or not not_key)),
        several=displayed > 1,
        colors=colors,
        size=size,
        samples=samples,
    )


def _first_bits(frame: bytes | memoryview) -> tuple[int, int]:
    """The first 32 bits of uncompressed_header, and the position of show_existing_frame among them, counted from the
    last bit; profile 3 has a reserved bit before it."""
    bits = int.from_bytes(bytes(frame[:4]).ljust(4, b"\0"), "big")
    return bits, 26 if bits >> 28 & 3 == _PROFILE_3 else 27


def _is_displayed(frame: bytes) -> bool:
    """Whether a frame is displayed when it is decoded, or displays another (show_existing_frame)."""
    bits, place = _first_bits(frame)
    return bool(bits >> place & 1 or bits >> (place - 2) & 1)


def finalize_disposable(kinds: list[PacketKind]) -> list[PacketKind]:
    """Mark VP9's disposable packets, given all packets of a track in decode order.

    A frame that refreshes no picture still changes the probabilities, loop filter deltas, segmentation and motion
    vectors on which the next frame depends (6.1.2 and 7.2). A key frame or an error-resilient frame depends on none of
    them, and resets them all (setup_past_independence). So a frame that refreshes no picture is disposable if the next
    frame in decode order is a key frame or error-resilient.
    """
    resets = [*(kind.resets_context for kind in kinds[1:]), False]
    return [replace(k, disposable=k.no_refresh and r) for k, r in zip(kinds, resets, strict=False)]


def coded_sizes(codec: str, packet: bytes) -> set[tuple[int, int]]:
    """The widths and heights in the headers of a packet's frames. Key frames have them; a frame without them has the
    size of a reference frame.

    Args:
        codec: "vp8" or "vp9".
        packet: the packet's bytes.

    Raises:
        ValueError: it ends early.
    """
    if codec == "vp8":
        if len(packet) == 0 or packet[0] & 1:
            return set()
        if packet[3:6] != b"\x9d\x01\x2a" or len(packet) < 10:
            raise ValueError("a key frame of it has no start code")
        width, height = (int.from_bytes(packet[at : at + 2], "little") & 0x3FFF for at in (6, 8))
        return {(width, height)}
    return {size for frame in _vp9_frames(packet) if (size := _vp9_format(frame)[2]) is not None}


_HEADER_BYTES: Final = 32


def _vp9_frames(packet: bytes) -> list[bytes]:
    """The frames of a packet, which may be a superframe (annex B)."""
    last = packet[-1] if packet else 0
    each, count = (last >> 3 & 3) + 1, (last & 7) + 1
    begin = len(packet) - (2 + each * count)
    if last >> 5 != _SUPERFRAME_MARKER or begin < 0 or packet[begin] != last:
        return [packet]
    sizes = [int.from_bytes(packet[begin + 1 + n * each : begin + 1 + (n + 1) * each], "little") for n in range(count)]
    ends = [sum(sizes[: n + 1]) for n in range(count)]
    return [packet[end - size : end] for end, size in zip(ends, sizes, strict=True) if size]


def _vp9_format(frame: bytes | memoryview) -> tuple[StatedColors | None, Samples | None, tuple[int, int] | None]:
    """Colours, samples, and width and height in an uncompressed_header (6.2); None for what it does not have."""
    bits, colors, samples = BitReader(frame[:_HEADER_BYTES]), None, None
    bits.u(2)  # frame_marker
    profile = bits.u(1) | bits.u(1) << 1
    if profile == _PROFILE_3:
        bits.u(1)  # reserved_zero
    if bits.u(1):  # show_existing_frame
        return None, None, None
    not_key, shown, resilient = bits.u(1), bits.u(1), bits.u(1)  # frame_type, show_frame, error_resilient_mode
    if not not_key:
        bits.u(24)  # frame_sync_code
        colors, samples = _color_config(bits, profile)
        return colors, samples, (bits.u(16) + 1, bits.u(16) + 1)  # frame_width_minus_1, frame_height_minus_1
    intra_only = 0 if shown else bits.u(1)
    if not resilient:
        bits.u(2)  # reset_frame_context
    if intra_only:
        bits.u(24)  # frame_sync_code
        if profile > 0:
            colors, samples = _color_config(bits, profile)
        bits.u(8)  # refresh_frame_flags
        return colors, samples, (bits.u(16) + 1, bits.u(16) + 1)
    bits.u(8)  # refresh_frame_flags
    bits.u(12)  # ref_frame_idx and ref_frame_sign_bias, of three
    if any(bits.u(1) for _ in range(3)):  # found_ref: the size is copied from a reference
        return None, None, None
    return None, None, (bits.u(16) + 1, bits.u(16) + 1)


def _color_config(bits: BitReader, profile: int) -> tuple[StatedColors, Samples]:
    """color_config, 6.2.2, as `PacketKind.colors` and `PacketKind.samples`."""
    depth = (10, 12)[bits.u(1)] if profile >= _PROFILE_2 else 8  # ten_or_twelve_bit
    space, full_range, across, down = bits.u(3), True, 1, 1  # color_space
    if space != _CS_RGB:
        full_range = bool(bits.u(1))  # color_range
        if profile in (1, _PROFILE_3):
            across, down, _ = bits.u(1), bits.u(1), bits.u(1)  # subsampling_x, subsampling_y, reserved_zero
    elif profile in (1, _PROFILE_3):
        across, down = 0, bits.u(1)  # reserved_zero
    return StatedColors(matrix=_MATRICES[space], full_range=full_range), Samples(across > 0, down > 0, depth)


_MATRICES: Final = (2, 5, 1, 6, 7, 9, 2, 0)
"""By color_space (7.2.2), in the numbers of ITU-T H.273."""
_PROFILE_2, _PROFILE_3, _CS_RGB = 2, 3, 7


def vp8_sample_description(*, width: int, height: int, full_range: bool) -> bytes:
    """A `stsd` box with a `vp08` entry and its `vpcC` box ("VP Codec ISO Media File Format Binding" 1.0).

    Args:
        width, height: of coded frames, in pixels.
        full_range: whether luma is from 0 to 255.
    """
    # profile 0, level 1.0; 8 bits, 4:2:0 with colocated chroma, videoFullRangeFlag; primaries, transfer, matrix unknown
    fields = bytes([0, 10, 8 << 4 | 1 << 1 | full_range, 2, 2, 2])
    vpcc = boxes.full_box(b"vpcC", fields, bytes(2), version=1)
    return visual_sample_description(b"vp08", vpcc, width=width, height=height)
