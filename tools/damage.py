"""Ways to break a video file, each as a file broken in the field would be. All but the last work in place."""

from __future__ import annotations

import struct
from contextlib import closing
from pathlib import Path

import av

from streamvid.mp4.boxes import iter_boxes, read_timescale

_Span = tuple[int, int]


def truncate(path: Path, fraction: float) -> None:
    """Keep the first `fraction` of a file, as an upload that broke off leaves it."""
    with path.open("r+b") as file:
        file.truncate(int(path.stat().st_size * fraction))


def flip_bytes(path: Path, *at: float) -> None:
    """Invert all bits of some bytes. A float from 0 to 1 is a place as a fraction of the file."""
    data = bytearray(path.read_bytes())
    for place in at:
        position = min(int(place * len(data)), len(data) - 1) if isinstance(place, float) else int(place)
        data[position] ^= 0xFF
    path.write_bytes(data)


def lie_about_duration(path: Path, factor: float) -> None:
    """Multiply the durations that an MP4's movie, track and media headers claim; the sample tables stay."""
    data = bytearray(path.read_bytes())
    trak = _video_track(data)
    movie = _find(data, (0, len(data)), b"moov")
    for parent, name in ((movie, b"mvhd"), (trak, b"tkhd"), (_find(data, trak, b"mdia"), b"mdhd")):
        start, _ = _find(data, parent, name)
        # Version 1 has times of 8 bytes. In tkhd, the track's number and a reserved word lie before the duration.
        wide = data[start] == 1
        offset = start + 4 + (16 if wide else 8) + (8 if name == b"tkhd" else 4)
        form = ">Q" if wide else ">I"
        (claimed,) = struct.unpack_from(form, data, offset)
        struct.pack_into(form, data, offset, int(claimed * factor))
    path.write_bytes(data)


def lie_about_size(path: Path, width: int, height: int) -> None:
    """Make an MP4's track header and sample entry claim another picture size than the bitstream has."""
    data = bytearray(path.read_bytes())
    trak = _video_track(data)
    _, end = _find(data, trak, b"tkhd")
    struct.pack_into(">II", data, end - 8, width << 16, height << 16)
    stsd, _ = _find(data, trak, b"mdia", b"minf", b"stbl", b"stsd")
    # Version and count (8), the entry's header (8), then 24 bytes of reserved words up to the size.
    struct.pack_into(">HH", data, stsd + 8 + 8 + 24, width, height)
    path.write_bytes(data)


def lie_about_sample(path: Path, sample: int, size: int = 0x7FFFFFFF) -> None:
    """Make an MP4's sample table claim another size for one packet of its video track."""
    data = bytearray(path.read_bytes())
    stsz, _ = _find(data, _video_track(data), b"mdia", b"minf", b"stbl", b"stsz")
    common, count = struct.unpack_from(">II", data, stsz + 4)
    if common or sample >= count:
        raise ValueError(f"{path.name}: the sample table has no entry {sample}")
    struct.pack_into(">I", data, stsz + 12 + 4 * sample, size)
    path.write_bytes(data)


def end_edit_after(path: Path, seconds: float) -> None:
    """Let an MP4's edit list show only so many seconds, as trimming the end on a phone does."""
    data = bytearray(path.read_bytes())
    mvhd, _ = _find(data, (0, len(data)), b"moov", b"mvhd")
    elst, end = _find(data, _video_track(data), b"edts", b"elst")
    form, entry = (">Q", 20) if data[elst] == 1 else (">I", 12)
    # Movie time is coarse, often milliseconds. Rounded up, it would show the start of one frame more.
    struct.pack_into(form, data, end - entry, int(seconds * read_timescale(data, mvhd)))
    path.write_bytes(data)


def _find(data: bytearray, span: _Span, *names: bytes) -> _Span:
    """Where the payload of a box starts and ends, by the types of the boxes around it and its own."""
    for name in names:
        found = [(start, end) for kind, start, end in iter_boxes(data, *span) if kind == name]
        if not found:
            raise ValueError(f"no {name.decode()} box here: is this an MP4?")
        span = found[0]
    return span


def _video_track(data: bytearray) -> _Span:
    for kind, start, end in iter_boxes(data, *_find(data, (0, len(data)), b"moov")):
        if kind == b"trak":
            handler, _ = _find(data, (start, end), b"mdia", b"hdlr")
            if data[handler + 8 : handler + 12] == b"vide":
                return start, end
    raise ValueError("no video track here")


def lie_about_order(source: Path, target: Path) -> Path:
    """The same packets, shown in decode order if one believes their times: as muxers write them that know decode times
    alone."""
    with closing(av.open(str(source))) as container, closing(av.open(str(target), "w")) as output:
        track = output.add_stream_from_template(container.streams.video[0], opaque=True)
        packets = [packet for packet in container.demux(video=0) if packet.size]
        times = sorted(packet.pts for packet in packets if packet.pts is not None)
        for packet, time in zip(packets, times, strict=True):
            packet.pts = packet.dts = time
            packet.stream = track
            output.mux(packet)
    return target
