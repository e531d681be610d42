"""MPEG-4 part 2 as DivX and XviD wrote it: VOPs that are not coded, and several in a packet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np

from tests.support.bits import to_bits
from tests.support.clips import write
from tools.clips import Recipe, paint
from tools.clips import write as write_pictures

_VOP = b"\x00\x00\x01\xb6"
_DIVX = b"\x00\x00\x01\xb2DivX503b1393p\x00"
"""The user data by which FFmpeg knows a packed bitstream."""


class Vop(NamedTuple):
    """A packet, and when it is shown, in ms."""

    data: bytes
    ms: int

    @property
    def kind(self) -> int:
        """vop_coding_type: 0 I, 1 P, 2 B."""
        return self.data[self.data.index(_VOP) + 4] >> 6


def encoded(folder: Path, *, b_frames: int = 0, frames: int = 24, still: bool = False) -> list[Vop]:
    """A stream with a clock of milliseconds and a frame every 40; if still, of a small gray picture."""
    recipe = Recipe(codec="mpeg4", frames=frames, gop=12, b_frames=b_frames, ticks=tuple(range(0, 40 * frames, 40)))
    if still:
        recipe = replace(recipe, width=64, height=64)
    gray = [np.full((64, 64, 3), 128, dtype=np.uint8)] * frames
    path = folder / "plain.mp4"
    with av.open(str(write_pictures(recipe, path, gray) if still else write(recipe, path))) as container:
        stream = container.streams.video[0]
        headers = bytes(stream.codec_context.extradata or b"")
        packets = [packet for packet in container.demux(stream) if packet.size]
        base = stream.time_base
    assert base is not None
    found = [Vop(bytes(one), round((one.pts or 0) * base * 1000)) for one in packets]
    return [one._replace(data=headers + one.data) if one.kind == 0 else one for one in found]


def write_still_above(path: Path, line: int, *, b_frames: int, height: int = 192) -> Path:
    """A clip of which the lines above `line` do not change."""
    recipe = Recipe(codec="mpeg4", frames=24, gop=12, height=height, b_frames=b_frames)
    pictures = list(paint(recipe))
    for picture in pictures:
        picture[:line] = pictures[0][:line]
    return write_pictures(recipe, path, pictures)


def without_version(data: bytes, *, of_object: int | None = None) -> bytes:
    """A packet, or headers, of a stream of version 1 whose VideoObjectLayer does not say so, as Xvid writes it.

    Args:
        of_object: the version that the VisualObject states nevertheless.
    """

    def layer(found: re.Match[bytes]) -> bytes:
        bits = to_bits(found[2])
        bits = bits[: bits.rindex("0")]  # the last 0 and the 1s behind it are stuffing
        # is_object_layer_identifier, and without video_object_layer_verid and video_object_layer_priority
        return found[1] + _stuffed(bits[:9] + "0" + bits[17:])

    # is_visual_object_identifier, visual_object_verid, visual_object_priority; visual_object_type, video_signal_type
    stated = ("0" if of_object is None else f"1{of_object:04b}001") + "00010"
    data = re.sub(
        rb"(\x00\x00\x01\xb5).*?(?=\x00\x00\x01)", lambda found: found[1] + _stuffed(stated), data, flags=re.S
    )
    return re.sub(rb"(\x00\x00\x01\x20)(.*?)(?=\x00\x00\x01|$)", layer, data, flags=re.S)


def without_delay(data: bytes) -> bytes:
    """A packet, or headers, whose VideoObjectLayer lacks vol_control_parameters, as encoders of version 1 write it."""

    def layer(found: re.Match[bytes]) -> bytes:
        bits = to_bits(found[2])
        bits = bits[: bits.rindex("0")]
        # Behind aspect_ratio_info: vol_control_parameters; then chroma_format, low_delay and vbv_parameters, here 0.
        assert (bits[21], bits[25]) == ("1", "0")
        return found[1] + _stuffed(bits[:21] + "0" + bits[26:])

    return re.sub(rb"(\x00\x00\x01\x20)(.*?)(?=\x00\x00\x01|$)", layer, data, flags=re.S)


def _stuffed(bits: str) -> bytes:
    """Up to a whole byte, for a start code to follow (next_start_code)."""
    bits += "0" + "1" * (-len(bits) % 8 - 1 if len(bits) % 8 else 7)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def not_coded(ms: int) -> Vop:
    """A P-VOP that shows the picture before once more, in the second of the VOP before it."""
    # vop_coding_type, modulo_time_base, marker, vop_time_increment of 10 bits, marker, vop_coded, stuffing
    bits = "01" + "0" + "1" + f"{ms % 1000:010b}" + "1" + "0"
    return Vop(_VOP + int(bits, 2).to_bytes(2, "big") + b"\x7f", ms)


def with_not_coded(vops: Sequence[Vop], after: Sequence[int]) -> list[Vop]:
    """The stream with a VOP that is not coded behind some of its VOPs, 20 ms after the last that is no B-VOP."""
    made: list[Vop] = []
    last = 0
    for number, one in enumerate(vops):
        last = last if one.kind == 2 else one.ms
        made += [one, not_coded(last + 20)] if number in after else [one]
    return made


def packed(vops: Sequence[Vop]) -> list[Vop]:
    """The same as a packed bitstream: the first of some B-VOPs lies in the packet of the VOP before, and a VOP that is
    not coded in the place of the last."""
    made: list[Vop] = []
    for one, following in zip(vops, [*vops[1:], vops[0]], strict=True):
        at = one.data.index(_VOP)
        made.append(one._replace(data=one.data[:at] + _DIVX + one.data[at:]) if one.kind == 0 else one)
        if one.kind == 2 and made[-2].kind != 2 and made[-2].data.count(_VOP) == 1:
            made[-2:] = [made[-2]._replace(data=made[-2].data + one.data)]
        if one.kind == 2 and following.kind != 2:
            made.append(not_coded(max(before.ms for before in made if before.kind != 2)))
    return made


def mux(vops: Sequence[Vop], path: Path) -> Path:
    """Write the stream to a container, by the file's name."""
    with av.open(str(path), "w") as output:
        stream = output.add_stream("mpeg4", rate=25)
        context = stream.codec_context
        context.width, context.height, context.pix_fmt = 320, 180, "yuv420p"
        stream.time_base = Fraction(1, 1000)
        step = 40 if path.suffix == ".avi" else 1
        for number, (one, ms) in enumerate(zip(vops, sorted(one.ms for one in vops), strict=True)):
            packet = av.Packet(len(one.data))
            packet.update(one.data)
            packet.pts, packet.dts = one.ms + 200, ms
            if step > 1:  # an AVI has a frame rate, and no times of presentation
                packet.pts = packet.dts = step * number
            packet.time_base, packet.stream, packet.is_keyframe = Fraction(1, 1000), stream, one.kind == 0
            output.mux(packet)
    return path
