"""Videos whose parameter sets claim other pictures than they hold, and videos that change their size midway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av

from streamvid.mp4.boxes import box
from streamvid.mp4.sample_entry import codec_configuration, visual_sample_description
from tests.support.bits import escaped, to_bits, to_bytes, ue, unescaped
from tests.support.clips import write
from tests.support.remux import remuxing
from tools.clips import Recipe

WIDTH, HEIGHT = 352, 288
CONTAINERS = {"h264": "mp4", "hevc": "mp4", "av1": "mp4", "vp9": "webm", "vp8": "webm", "mjpeg": "avi", "mpeg4": "mp4"}
MOST = {"vp8": 16383, "mpeg4": 8191, "mjpeg": 65535, "vp9": 65536, "av1": 65536}
"""Pixels that a side can have, where the syntax has a limit."""


def source(codec: str, folder: Path, *, width: int = WIDTH, height: int = HEIGHT, frames: int = 30) -> Path:
    """A video that is as it says."""
    container: Any = CONTAINERS[codec]
    gop = 1 if codec == "mjpeg" else 10
    recipe: Any = {"codec": codec, "container": container, "width": width, "height": height}
    made = Recipe(**recipe, frames=frames, gop=gop, b_frames=0)
    return write(made, folder / f"{codec}-{width}.{container}")


def claiming(codec: str, path: Path, target: Path, width: int, height: int) -> Path:
    """A copy of a video of `source` whose parameter sets claim another size, in all places where there are any."""
    change = _CHANGES[codec]
    width, height = (min(side, MOST.get(codec, side)) for side in (width, height))
    changed = 0

    def new(data: bytes) -> bytes:
        nonlocal changed
        found = change(data, width, height)
        changed += found != data
        return found

    _copy(path, target, new)
    assert changed, codec
    return target


def lie(codec: str, data: bytes, width: int, height: int) -> bytes:
    """A configuration record or packet of a video of `source` that claims another size, in as many bytes where the
    codec's size has a fixed number of bits; itself if it claims none."""
    return _CHANGES[codec](data, *(min(side, MOST.get(codec, side)) for side in (width, height)))


def lie_in_description(codec: str, stsd: bytes, width: int, height: int) -> bytes:
    """The same of a sample description of H.264, HEVC or MPEG-4."""
    if codec == "mpeg4":
        return lie(codec, stsd, width, height)
    entry, name = {"h264": (b"avc1", b"avcC"), "hevc": (b"hvc1", b"hvcC")}[codec]
    record = lie(codec, codec_configuration(stsd, name), width, height)
    return visual_sample_description(entry, box(name, record), width=WIDTH, height=HEIGHT)


def joined(codec: str, first: Path, second: Path, target: Path) -> Path:
    """The packets of one video behind those of another, by the parameter sets of the first and those in packets."""
    with av.open(str(second)) as container:
        more = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    _copy(first, target, lambda data: data, more)
    return target


def _copy(path: Path, target: Path, change: Callable[[bytes], bytes], more: Sequence[bytes] = ()) -> None:
    with remuxing(path, target) as copy:
        copy.track.codec_context.extradata = change(bytes(copy.stream.codec_context.extradata or b"")) or None
        *_, before, last = ((packet.dts, packet.pts, packet.time_base) for packet in copy.packets)
        for packet in copy.packets:
            copy.mux(packet, change(bytes(packet)))
        for n, data in enumerate(more, 1):
            packet = av.Packet(data)
            packet.pts = packet.dts = max(last[:2]) + n * (last[0] - before[0])
            packet.time_base, packet.is_keyframe = last[2], n == 1 or len(data) > 3000
            copy.mux(packet)


def _h264(data: bytes, width: int, height: int) -> bytes:
    if data[:1] != b"\1" or len(data) < 9 or data[8] & 31 != 7:
        return data
    end = 8 + int.from_bytes(data[6:8], "big")
    bits = to_bits(unescaped(data[9:end]))
    before = ue(WIDTH // 16 - 1) + ue(HEIGHT // 16 - 1)
    assert bits.count(before) == 1
    unit = data[8:9] + escaped(to_bytes(bits.replace(before, ue(width // 16 - 1) + ue(height // 16 - 1))))
    return data[:6] + len(unit).to_bytes(2, "big") + unit + data[end:]


def _hevc(data: bytes, width: int, height: int) -> bytes:
    at = data.find(b"\x42\x01")
    if data[:1] != b"\1" or at < 2:
        return data
    end = at + int.from_bytes(data[at - 2 : at], "big")
    bits = to_bits(unescaped(data[at + 2 : end]))
    before = ue(WIDTH) + ue(HEIGHT)
    assert bits.count(before) == 1
    unit = data[at : at + 2] + escaped(to_bytes(bits.replace(before, ue(width) + ue(height))))
    return data[: at - 2] + len(unit).to_bytes(2, "big") + unit + data[end:]


def _av1(data: bytes, width: int, height: int) -> bytes:
    at = data.find(b"\x0a")  # a sequence header with its size
    while at >= 0:
        size = data[at + 1]
        bits = to_bits(data[at + 2 : at + 2 + size])
        for n in range(9, 17):
            before = f"{n - 1:04b}"
            for m in range(9, 17):
                pattern = f"{before}{m - 1:04b}{WIDTH - 1:0{n}b}{HEIGHT - 1:0{m}b}"
                if bits.count(pattern) == 1:
                    wide = (16, 16) if width > 1 << n else (n, m)  # as few bits as it has, if they are enough
                    wider = f"{wide[0] - 1:04b}{wide[1] - 1:04b}{width - 1:0{wide[0]}b}{height - 1:0{wide[1]}b}"
                    unit = to_bytes(bits.replace(pattern, wider))
                    return data[: at + 1] + bytes([len(unit)]) + unit + data[at + 2 + size :]
        at = data.find(b"\x0a", at + 1)
    return data


def _vp9(data: bytes, width: int, height: int) -> bytes:
    at = data.find(b"\x49\x83\x42", 0, 4)
    if at < 0:
        return data
    bits = to_bits(data[at + 3 : at + 8])
    size = f"{width - 1:016b}{height - 1:016b}"
    return data[: at + 3] + int(bits[:4] + size + bits[36:], 2).to_bytes(5, "big") + data[at + 8 :]


def _vp8(data: bytes, width: int, height: int) -> bytes:
    if data[3:6] != b"\x9d\x01\x2a":
        return data
    return data[:6] + width.to_bytes(2, "little") + height.to_bytes(2, "little") + data[10:]


def _mjpeg(data: bytes, width: int, height: int) -> bytes:
    at = data.find(b"\xff\xc0")
    return data if at < 0 else data[: at + 5] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + data[at + 9 :]


def _mpeg4(data: bytes, width: int, height: int) -> bytes:
    bits, before = to_bits(data), f"1{WIDTH:013b}1{HEIGHT:013b}1"
    if bits.count(before) != 1:
        return data
    return int(bits.replace(before, f"1{width:013b}1{height:013b}1"), 2).to_bytes(len(data), "big")


_CHANGES: dict[str, Callable[[bytes, int, int], bytes]] = {
    "h264": _h264, "hevc": _hevc, "av1": _av1, "vp9": _vp9, "vp8": _vp8, "mjpeg": _mjpeg, "mpeg4": _mpeg4,
}  # fmt: skip
