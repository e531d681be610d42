"""The fuzzed functions: readers of bytes, each with its first inputs and the errors that it may raise."""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import streamvid as sv
from streamvid.bitstream import annexb, image, jpeg, mpeg4, packet_info
from streamvid.bitstream.nal import ParameterSets
from streamvid.bitstream.packets import Packets
from streamvid.checksum import crc32c
from streamvid.dataset.clip_table import ClipTable
from streamvid.dataset.consolidated import read_rows, write_rows
from streamvid.dataset.frame_indexes import parse_index
from streamvid.dataset.manifest import Manifest
from streamvid.dataset.shard_rows import read_scalars, row_blocks
from streamvid.dataset.table_cache import in_memory
from streamvid.errors import StreamvidError
from streamvid.inspection.checks import check_fields, check_idx, check_tar
from streamvid.loader.quarantine import read_folder
from streamvid.loader.sampler_state import ResumableBatches, SamplerPosition, from_state, to_state
from streamvid.mp4 import boxes, edit_list, sample_entry
from streamvid.mp4.reader import read_track
from streamvid.packing import images, journal
from streamvid.packing.cut_list import attach_cuts
from streamvid.packing.inputs import find_sources
from streamvid.packing.labels import attach_labels, attach_metadata
from streamvid.packing.metadata import MetadataLists
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from streamvid.packing.source_video import SourceVideo
from streamvid.plan.checkpoint import RunSchedule
from streamvid.plan.epoch_plan import Plan
from streamvid.plan.mixture import SampleStream
from streamvid.plan.permutation import Pool
from streamvid.plan.world import World
from streamvid.video.image_decoder import decode_images
from streamvid.video.index_file import ENTRY_BYTES, PACKET_BYTES
from streamvid.video.packet_selection import select_packets
from streamvid.video.remux import store_clip
from tools.clips import Recipe, write

SMALL = Recipe(width=64, height=64, frames=12, gop=6)
CODECS = {
    "h264": SMALL,
    "h264_trimmed": Recipe(width=64, height=64, frames=12, gop=6, audio=True, trim=2),
    "hevc": Recipe(codec="hevc", width=64, height=64, frames=12, gop=6, open_gop=True, b_frames=3),
    "av1": Recipe(codec="av1", width=64, height=64, frames=12, gop=6),
    "vp9": Recipe(codec="vp9", width=64, height=64, frames=12, gop=6, b_frames=0),
    "vp8": Recipe(codec="vp8", container="webm", width=64, height=64, frames=8, gop=4, b_frames=0),
    "mpeg4": Recipe(codec="mpeg4", width=64, height=64, frames=12, gop=6),
    "mjpeg": Recipe(codec="mjpeg", width=64, height=64, frames=2, gop=1, b_frames=0),
}


@dataclass(frozen=True)
class Target:
    """A reader.

    Attributes:
        seeds: makes the files to begin with; a folder is given for what they are made of.
        read: takes any bytes.
        allowed: the errors that it may raise.
        tokens: bytes that mean something to it.
        is_json: mutants are of the values in the file, too.
    """

    seeds: Callable[[Path], Iterable[bytes]]
    read: Callable[[bytes], object]
    allowed: tuple[type[Exception], ...] = (StreamvidError,)
    tokens: tuple[bytes, ...] = ()
    is_json: bool = False


def _videos(folder: Path, codecs: Iterable[str] = ("h264", "h264_trimmed", "hevc", "av1")) -> list[bytes]:
    return [write(CODECS[codec], folder / f"{codec}.{CODECS[codec].container}").read_bytes() for codec in codecs]


@contextlib.contextmanager
def _as_file(data: bytes, name: str = "file") -> Any:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        yield path


def _mp4(data: bytes) -> None:
    with _as_file(data) as path:
        for number in (1, 2):
            for moov in boxes.read_moovs(path):
                sample_entry.read_entries(moov, number)
            edit_list.read_edit(path, number)
        boxes.find_box(data, b"stsd")
        with path.open("rb", buffering=0) as file:
            track = read_track(file, more=True)
        packet_info.classifier(track.codec, track.stsd)
        sample_entry.coded_size(track.stsd)


def _packets(codec: str, folder: Path) -> list[bytes]:
    clip = store_clip(write(CODECS[codec], folder / f"a.{CODECS[codec].container}"), folder)
    data = clip.mp4.read_bytes() if clip.unwritten is None else b"".join(map(bytes, clip.read_mp4()))
    spans = zip(clip.index.offset.tolist(), clip.index.size.tolist(), strict=True)
    parts = [clip.stsd, *(data[at : at + size] for at, size in spans)]
    return [b"".join(struct.pack(">I", len(part)) + part for part in parts)]


def _bitstream(codec: str, data: bytes) -> None:
    """A sample description and packets, each behind its length."""
    parts = []
    while data:
        size = int.from_bytes(data[:4]) % (1 << 24)
        parts.append(data[4 : 4 + size])
        data = data[4 + size :]
    stsd, *packets = parts or [b""]
    if codec in ("h264", "hevc"):
        sets = ParameterSets(stsd, 4, 8)
        with contextlib.suppress(ValueError):
            sets = annexb.parameter_sets(codec, stsd)
        annexb.dpb_requirement(codec, sets.annex_b)
        with contextlib.suppress(ValueError):
            list(replace(Packets.of(packets), length_size=sets.length_size))
    clock = mpeg4.VopClock()
    for packet in packets:
        with contextlib.suppress(ValueError):
            clock.time(packet)
        jpeg.rotation(packet)
        jpeg.picture_height(packet)
        with contextlib.suppress(StreamvidError):
            jpeg.check_jpeg(packet, "image")
    try:
        of = packet_info.classifier(codec, stsd)
    except ValueError:
        return
    packet_info.finalize_disposable(codec, [of(memoryview(packet)) for packet in packets])


@cache
def _dataset() -> Path:
    """A dataset of two clips with metadata."""
    folder = Path(tempfile.mkdtemp(prefix="streamvid-fuzz-"))
    lines = ["path,label,score,when,tags"]
    for n in range(2):
        write(SMALL, folder / f"{n}.mp4")
        lines.append(f'{n}.mp4,{n},{n / 4},2024-01-0{n + 1},"a, b"')
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    pack([folder], folder / "set", labels=folder / "labels.csv", options=PackOptions("any"), progress=False)
    return folder / "set"


@cache
def _opened() -> sv.Dataset:
    return sv.Dataset.open(_dataset())


def _shard(extension: str) -> bytes:
    return (_dataset() / "shards" / f"00000000.{extension}").read_bytes()


def _rows(data: bytes) -> None:
    entry = _opened().shards[0]
    table = read_scalars(pa.py_buffer(data), entry, checksums=True)
    content = in_memory(lambda path: write_rows(path, row_blocks([table], [entry]), [entry]))
    clips, texts = read_rows(content, [entry])
    list(check_fields(table, clips))
    for name in (meta := texts.metadata()).names:
        with contextlib.suppress(StreamvidError):
            meta.get(name)


def _cells(data: bytes) -> None:
    """The rows as JSON, so that mutants are of cells; those that Arrow takes for the columns' types."""
    schema = pq.read_schema(_dataset() / "shards/00000000.parquet")
    with contextlib.suppress(ValueError, TypeError, OverflowError, AttributeError, RecursionError, pa.ArrowException):
        rows = [_bytes_of(one) for one in json.loads(data)]
        stream = io.BytesIO()
        relaxed = pa.schema([field.with_nullable(True) for field in schema])
        pq.write_table(pa.Table.from_pylist(rows, schema=relaxed), stream)
        data = stream.getvalue()
    _rows(data)


def _bytes_of(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value.encode("latin-1") if name == "stsd" else value for name, value in row.items()}


def _rows_json(_: Path) -> list[bytes]:
    rows = pq.read_table(_dataset() / "shards/00000000.parquet").drop_columns(["meta_when"]).to_pylist()
    return [json.dumps([row | {"stsd": row["stsd"].decode("latin-1")} for row in rows]).encode()]


def _index(data: bytes) -> None:
    """A frame index of one block to three, by the first byte; then its checksums are right, so that what they guard is
    read, too."""
    clips = _opened().clips
    sealed = bytearray(data[1:])
    head = ENTRY_BYTES * (1 + data[0] % 3) if data else ENTRY_BYTES
    at, packets, frames = head, 0, 0
    for entry in range(0, min(head, len(sealed) - ENTRY_BYTES + 1), ENTRY_BYTES):
        count = min(int.from_bytes(sealed[entry + 8 : entry + 12], "little"), len(sealed))
        frames += int.from_bytes(sealed[entry + 12 : entry + 16], "little")
        block = sealed[at : at + PACKET_BYTES * count]
        sealed[entry + 16 : entry + 20] = crc32c(bytes(block)).to_bytes(4, "little")
        at, packets = at + len(block), packets + count
    for content in (bytes(sealed), data[1:]):
        row = {"index_size": head + PACKET_BYTES * packets, "packets": packets, "frames": min(frames, (1 << 31) - 1)}
        row |= {"index_crc32c": crc32c(content[:head]), "mp4_size": 1 << 20}
        columns: Any = {name: np.array([value], dtype=np.int64) for name, value in row.items()}
        changed = replace(clips, **columns)
        index = parse_index(np.frombuffer(content, dtype=np.uint8), changed, 0)
        for frame in {0, len(index.visible) - 1}:
            select_packets(index, np.array([frame]))


def _indexes(_: Path) -> list[bytes]:
    data, clips = _shard("packets"), _opened().clips
    one = data[: int(clips.index_size[0])]
    head, blocks = one[:ENTRY_BYTES], one[ENTRY_BYTES:]
    later = (10**6).to_bytes(8, "little")
    table = np.frombuffer(blocks, dtype=np.uint8).reshape(-1, PACKET_BYTES).copy()
    table[:, :8].view("<i8")[:] += 10**6
    return [b"\0" + one, b"\1" + head + later + head[8:] + blocks + table.tobytes()]


def _quarantine(data: bytes) -> None:
    with _as_file(data, "0.jsonl") as path:
        read_folder(path.parent, _opened())


def _checked(check: Callable[[Path, ClipTable], Iterable[object]], data: bytes) -> None:
    with _as_file(data) as path:
        list(check(path, _opened().clips))


SOURCES = [SourceVideo(f"/videos/{name}", name, name[:-4]) for name in ("a.mp4", "b.mp4", "c 1.mkv")]
CSV = (
    b"path,label,start,end,note\na.mp4,x,0,1.5,hello\nb.mp4,y,1:02,,\n",
    b"key,start_frame,end_frame,day\na,0,5,2024-01-01\nb,3,,2024-02-30\n",
)
LINES = (
    b'{"path":"a.mp4","label":1,"start":0,"end":2,"tags":["x"],"box":{"x":1}}\n{"path":"b.mp4","label":2,"start":1}\n',
    b'{"video":"a.mp4","day":"2024-01-01T00:00:00"}\n{"video":"b.mp4","n":1.5}\n',
)


def _lists(extension: str, data: bytes) -> None:
    with _as_file(data, f"list{extension}") as path:
        for join in (attach_cuts, attach_labels, attach_metadata):
            lists = MetadataLists()
            with contextlib.suppress(StreamvidError):
                join(SOURCES, os.fspath(path), lists)
                metadata = lists.finish(pa.schema([]))
                metadata.columns([((int(n),), {}) for n in metadata.number])
        with contextlib.suppress(StreamvidError):
            sv.Subset(os.fspath(_dataset()), keys=path)
        find_sources([os.fspath(path)], MetadataLists())


def _parquet_lists(_: Path) -> list[bytes]:
    made = []
    for table in (pa.csv.read_csv(io.BytesIO(CSV[0])), pa.json.read_json(io.BytesIO(LINES[0]))):
        for options in ({}, {"compression": "zstd", "data_page_version": "2.0"}, {"use_dictionary": False}):
            stream = io.BytesIO()
            pq.write_table(table, stream, **options)
            made.append(stream.getvalue())
    return made


def _schedule(steps: int | None, *, local: bool) -> RunSchedule:
    ids = np.arange(20, dtype=np.int64)
    stream = SampleStream((Pool(ids, (ids // 5).astype(np.int32)),), (1,), 3, "full", 2)
    world = World(0, 2, nodes=2) if local else World(0, 1)
    keys = np.zeros(20, dtype=np.uint16)
    plan = Plan(stream, 2, world, local=local, steps=steps, bucket_steps=0 if local else 2, bucket_keys=lambda: keys)
    return RunSchedule(plan, ("a", "b", "c", "d"), sv.Window(2))


SCHEDULES = (_schedule(None, local=False), _schedule(5, local=False), _schedule(None, local=True))


def _batches() -> ResumableBatches:
    import torch.utils.data as data

    return ResumableBatches(data.BatchSampler(data.RandomSampler(range(8)), 2, drop_last=False), None)


def _states(_: Path) -> list[bytes]:
    made = [run.start(1).advanced().state() for run in SCHEDULES]
    samplers = to_state(SamplerPosition(1, 2), _batches(), 2, {"samples": 8})
    return [json.dumps(one).encode() for one in (*made, samplers)]


def _state(data: bytes) -> None:
    with contextlib.suppress(ValueError, RecursionError):
        state = json.loads(data)
        for run in SCHEDULES:
            with contextlib.suppress(StreamvidError):
                cursor = run.resume(state)
                epoch = cursor.epoch()
                if epoch.left:
                    epoch.step(epoch.done)
                run.after(cursor).state()
        batches = _batches()
        with contextlib.suppress(StreamvidError):
            list(batches.begin(0, from_state(state, batches, 2, {"samples": 8}).batches))


def _images(_: Path) -> list[bytes]:
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 255, (6, 9, 4), dtype=np.uint8)
    whole, found = Image.fromarray(noise).convert("RGB"), []
    forms = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "JPEG2000")
    others: list[tuple[str, dict[str, Any]]] = [("TIFF", {"compression": "tiff_lzw"}), ("PNG", {"bits": 2})]
    for form, options in [*((form, dict[str, Any]()) for form in forms), *others]:
        file = io.BytesIO()
        exif = Image.Exif()
        exif[0x112] = 6
        kept = {"exif": exif} if form in ("JPEG", "PNG", "WEBP", "TIFF") else {}
        (whole.quantize(4) if "bits" in options else whole).save(file, form, **kept, **options)
        found.append(file.getvalue())
    return found


def _image(data: bytes) -> None:
    header = image.read_header(data)
    # What is larger takes long, and no more. DALI's decoders of the other two corrupt memory: docs/images.md.
    if header.width * header.height <= 1 << 20 and header.codec in ("jpeg", "png", "webp", "bmp"):
        stsd = sample_entry.visual_sample_description(
            image.CODECS[header.codec], b"", width=header.width, height=header.height
        )
        list(decode_images(stsd, [(data, 0)]))


def _records(_: Path) -> list[bytes]:
    entry = {"name": "00000000", "clips": 1, "frames": 2, "bytes": 3, "sha256": "a", "idx_sha256": "b"}
    entry |= {"packets_bytes": 1, "packets_sha256": "d"}
    record = {"fingerprint": "f", "number": 0, "entry": entry | {"parquet_sha256": "c"}, "seconds": 1.5}
    record |= {"rejected": [{"source": "x", "reason": "y"}], "next": [1, 2], "notices": []}
    return [json.dumps(record).encode()]


TARGETS: dict[str, Target] = {
    "mp4": Target(_videos, _mp4, (ValueError,), tuple(b"moov trak mdia minf stbl stsd stsz stco co64 elst".split())),
    **{
        codec: Target(partial(_packets, codec), partial(_bitstream, codec), tokens=(b"\0\0\1", b"\0\0\3", b"\xff\xd8"))
        for codec in CODECS
        if codec != "h264_trimmed"
    },
    "manifest": Target(
        lambda _: [(_dataset() / "dataset.json").read_bytes()],
        lambda data: Manifest.from_json(data, path="dataset.json").to_json(),
        is_json=True,
    ),
    "rows": Target(lambda _: [_shard("parquet")], _rows),
    "cells": Target(_rows_json, _cells, is_json=True),
    "index": Target(_indexes, _index, (ValueError,)),
    "quarantine": Target(
        lambda _: [b'{"key":"0","row":0,"shard":"00000000","reason":"x"}\n{"key":"1","row":1}\n'],
        _quarantine,
        tokens=(b"\n", b"{", b'"key"', b"0", b"\\ud800"),
    ),
    "tar": Target(lambda _: [_shard("tar")], partial(_checked, check_tar)),
    "idx": Target(lambda _: [_shard("idx")], partial(_checked, check_idx)),
    "csv": Target(
        lambda _: CSV, partial(_lists, ".csv"), tokens=(b",", b'"', b"\n", b"1e999", b"99:99:99", b"\xef\xbb\xbf")
    ),
    "jsonl": Target(
        lambda _: LINES, partial(_lists, ".jsonl"), tokens=(b"{", b"[", b"}", b'"', b"1e999", b"null", b"\\ud800")
    ),
    "parquet": Target(_parquet_lists, partial(_lists, ".parquet")),
    "state": Target(_states, _state, is_json=True),
    "image": Target(
        _images,
        _image,
        (ValueError, av.error.FFmpegError),
        (b"IHDR", b"acTL", b"eXIf", b"VP8X", b"VP8L", b"jp2c", b"jp2h"),
    ),
    "journal": Target(_records, lambda data: journal._parse(data, 0, "f"), is_json=True),
    "times": Target(
        lambda _: [b"time\n0\n0.5\n1\n"],
        lambda data: images._read_times(data, "timestamps.csv", 3),
        tokens=(b",", b"1e99", b"1/0", b"nan", b'"'),
    ),
}
