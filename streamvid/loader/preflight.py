"""The preflight check of a GPU run finds the clips that this GPU does not decode, or decodes wrongly. CPU cores decode
them, because an epoch must not stop in the middle for such a clip."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from streamvid.arrays import Bool, Int64
from streamvid.color.tags import ColorOption
from streamvid.dataset.clip_source import ClipSource
from streamvid.decode.clip_groups import ClipGroup, group_clips, header_faults
from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.dali_cache_guard import mixed_up
from streamvid.decode.gpu import GpuDecoder, decode_support
from streamvid.decode.nvdec import load_nvdec
from streamvid.decode.nvdec_library import built_modules
from streamvid.errors import InputError, VideoError
from streamvid.fetch.encoded_batch import read_batches
from streamvid.fetch.plan_samples import SampleSpec
from streamvid.fetch.shard_access import ShardAccess
from streamvid.loader.rescue import BAD_CLIP
from streamvid.plan.epoch import Step
from streamvid.sampling.spread import Uniform
from streamvid.video.gpu_support import NOT_IN_SESSIONS, Route
from streamvid.video.packet_selection import EncodedSlice

log = logging.getLogger(__name__)

Fallback = Literal["cpu", "error"]
FALLBACKS: Final[tuple[Fallback, ...]] = ("cpu", "error")

_PROBE_FRAMES: Final = 3
_SAYS: Final = "the GPU's decoder says: "
_MAX_DIFFERENCE: Final = 6.0
"""Mean difference in levels above which frames from GPU and CPU are not the same frames; usual is about 1."""
_LOOKED_AT: Final = 1 << 15
"""Most sample descriptions that are examined, which takes a second or two."""
_NO_SESSIONS: Final = "PyNvVideoCodec or Triton is missing or does not work"
_REMEDY: Final = (
    "transcode them (8-bit 4:2:0 H.264 with even sides always works), leave them out, or give fallback='cpu' or "
    "device='cpu'"
)


@dataclass(frozen=True)
class ClipRoute:
    """The decoder of clips of one codec, profile and pixel format, and why it is that one.

    Attributes:
        decoder: "nvdec": decode sessions; "dali": DALI, on the GPU, or with engine="dali" on either device; "image":
            DALI's decoder of images; "cpu": FFmpeg.
        clips: number of clips.
        kind: codec, profile and pixel format.
        reason: why NVDEC's decode sessions do not decode these clips; "" if they do, or if the user chose the decoder.
    """

    decoder: Literal["nvdec", "dali", "image", "cpu"]
    clips: int
    kind: str
    reason: str = ""


@dataclass(frozen=True)
class ClipRoutes:
    """The routes of the clips of a GPU run.

    Attributes:
        on_cpu: bool [clips of the dataset], whether the CPU decodes a clip.
        table: number of clips per route.
    """

    on_cpu: Bool
    table: tuple[ClipRoute, ...]


def routes_to(decoder: Literal["dali", "cpu"], dataset: ClipSource, rows: Int64) -> tuple[ClipRoute, ...]:
    """The routes of clips that one decoder decodes, all of them."""
    return tuple(ClipRoute(decoder, len(members), str(group)) for group, members in group_clips(dataset, rows).items())


def find_cpu_decoded(
    dataset: ClipSource,
    rows: Int64,
    *,
    device_id: int,
    probe: Callable[[int], EncodedSlice],
    num_threads: int,
    fallback: Fallback = "cpu",
    sessions: bool = True,
) -> ClipRoutes:
    """Find the clips that the CPU decodes in a GPU run: by the table of `streamvid.video.gpu_support`, and by decoding
    examples.

    Of every group that the table gives to the GPU, the smallest and the largest clip are decoded on the GPU and on the
    CPU, and compared. One warning says which clips the CPU decodes, why, and how fast.

    Args:
        rows: int64 [clips], the rows that will be used.
        probe: reads a few frames of a row's clip: see `probe_slice`.
        fallback: "cpu", or "error": refuse such clips.
        sessions: whether persistent sessions decode; False: DALI decodes their clips, too.

    Raises:
        InputError: the driver's NVDEC library cannot be loaded and there are clips for the GPU; with fallback="error",
            clips that the GPU does not decode. Names codecs, clips and the remedy.
    """
    groups = group_clips(dataset, rows)
    left = [(group, members, group.support.reason) for group, members in groups.items() if _is_for_cpu(group)]
    for_gpu = {group: members for group, members in groups.items() if not _is_for_cpu(group)}
    table: list[ClipRoute] = []
    if for_gpu:
        if any(group.support.route is not Route.IMAGE for group in for_gpu):
            load_nvdec()
        refused, routes = _refused_by_gpu(dataset, for_gpu, device_id, probe, sessions=sessions)
        left += refused
        for group, members in for_gpu.items():
            if count := len(members) - sum(len(some) for other, some, _ in refused if other == group):
                table.append(_on_gpu(group, routes[group], count))
    table += [ClipRoute("cpu", len(members), str(group), reason) for group, members, reason in left]
    counts = Counter[ClipRoute]()
    for row in table:
        counts[replace(row, clips=0)] += row.clips
    found = tuple(replace(row, clips=clips) for row, clips in counts.items())
    on_cpu = np.zeros(len(dataset), dtype=bool)
    if not left:
        return ClipRoutes(on_cpu, found)
    if fallback == "error":
        problems = "; ".join(group.describe(dataset, members, reason) for group, members, reason in left)
        raise InputError(f"this GPU cannot decode {problems}: {_REMEDY}")
    notes = []
    for group, members, reason in left:
        on_cpu[members] = True
        pace = _decoded_per_second(_readable(probe, int(members[np.argmax(_area(dataset, members))])))
        rate = f"{pace * num_threads:.0f} frames/s or less" if pace else "an unknown rate, as the largest is damaged"
        notes.append(f"{group.describe(dataset, members, reason)}, at {rate}")
    log.warning(
        "%d of %d clips are decoded by %d CPU threads and copied to the GPU: %s; `streamvid pack --codec h264` "
        "transcodes such clips, fallback='error' refuses them",
        np.count_nonzero(on_cpu), len(rows), num_threads, "; ".join(notes),
    )  # fmt: skip
    return ClipRoutes(on_cpu, found)


def cpu_decoded_clips(dataset: ClipSource) -> list[tuple[str, str, Int64]]:
    """The clips that the CPU decodes in a GPU run, according to the table of `streamvid.video.gpu_support` and to
    sample descriptions, with the native module if it is installed. For each group: codec, profile and pixel format; the
    reason; and the rows, int64 [clips]. Needs no GPU."""
    groups = group_clips(dataset)
    found = [(str(group), group.support.reason, rows) for group, rows in groups.items() if _is_for_cpu(group)]
    for group, rows in groups.items():
        if group.support.route is Route.NVDEC:
            faults = _session_faults(dataset, rows, native=bool(built_modules()))
            found += [(str(group), reason, some) for reason, some in faults.items()]
    return found


def _on_gpu(group: ClipGroup, route: Route, clips: int) -> ClipRoute:
    if route is Route.DALI:
        return ClipRoute("dali", clips, str(group), NOT_IN_SESSIONS if group.support.route is route else _NO_SESSIONS)
    return ClipRoute("image" if route is Route.IMAGE else "nvdec", clips, str(group))


def _is_for_cpu(group: ClipGroup) -> bool:
    return group.support.route is Route.CPU


def _area(dataset: ClipSource, rows: Int64) -> Int64:
    return dataset.clips.width[rows].astype(np.int64) * dataset.clips.height[rows]


def _refused_by_gpu(
    dataset: ClipSource,
    groups: dict[ClipGroup, Int64],
    device_id: int,
    probe: Callable[[int], EncodedSlice],
    *,
    sessions: bool,
) -> tuple[list[tuple[ClipGroup, Int64, str]], dict[ClipGroup, Route]]:
    """Try the groups that the table assigns to the GPU. Returns, with the reason, the groups that it fails on or
    decodes wrongly, those that need a decode session where there is none, and clips of sizes that DALI's decoder cache
    mixes up; and the route of every group."""
    refused = []
    decoder = GpuDecoder(device_id=device_id, threads=2, max_batch=2, sessions=sessions)
    routes = {group: decoder.route(group.support) for group in groups}
    for group, route in routes.items():
        if route is Route.CPU:
            refused.append((group, groups[group], f"{_NO_SESSIONS}, and {group.support.dali}"))
    groups = {group: members for group, members in groups.items() if routes[group] is not Route.CPU}
    for group in [group for group in groups if group.support.route is Route.NVDEC]:
        for reason, members in _session_faults(dataset, groups[group], native=decoder.native).items():
            refused.append((group, members, reason))
            groups[group] = np.setdiff1d(groups[group], members)
    by_dali = [members for group, members in groups.items() if routes[group] is Route.DALI]
    if by_dali:
        rows = np.concatenate(by_dali)
        mixed = rows[mixed_up(dataset, rows, device_id)]
        reason = "DALI would mix them up with other heights coded alike"
        refused += [(group, members, reason) for group, members in group_clips(dataset, mixed).items()]
        groups = {group: np.setdiff1d(members, mixed) for group, members in groups.items()}
    try:
        for group, members in groups.items():
            area = _area(dataset, members)
            ends = (members[np.argmin(area)], members[np.argmax(area)]) if len(members) else ()
            for row in dict.fromkeys(int(end) for end in ends):
                encoded, problem = _readable(probe, row), ""
                # Try once more if the driver fails, because the reason need not be the clip.
                for _ in range(2):
                    problem = "" if encoded is None else _try(encoded, decoder, routes[group])
                    if problem:
                        decoder.close()  # a DALI pipeline cannot be used after an error
                        decoder = GpuDecoder(device_id=device_id, threads=2, max_batch=2, sessions=sessions)
                    if not problem.startswith(_SAYS):
                        break
                if problem:
                    refused.append((group, members, problem))
                    break
    finally:
        decoder.close()
    return refused, routes


def _session_faults(dataset: ClipSource, rows: Int64, *, native: bool) -> dict[str, Int64]:
    """Clips that decode sessions would decode wrongly, int64 [clips], by the reason, which is in their sample
    descriptions. If the dataset has very many sample descriptions, none is examined here, but each by `GpuDecoder` when
    it comes."""

    def fault(codec: str, stsd: bytes, width: int, height: int) -> str:
        found = decode_support(codec, stsd, width, height, native=native)
        return found.reason if found.route is Route.CPU else ""

    return header_faults(dataset, rows, fault, most=_LOOKED_AT)


def _readable(probe: Callable[[int], EncodedSlice], row: int) -> EncodedSlice | None:
    """A few frames of a clip; None if it is damaged, which is reported when it is streamed."""
    try:
        return probe(row)
    except BAD_CLIP:
        return None


def _decoded_per_second(encoded: EncodedSlice | None) -> float:
    """Frames a second that one core decodes, including the conversion of wanted frames to RGB; 0 if the clip is
    damaged."""
    if encoded is None:
        return 0.0
    started = time.perf_counter()
    try:
        decode_with_pyav(encoded)
    except VideoError:
        return 0.0
    return len(encoded.sizes) / (time.perf_counter() - started)


def probe_slice(dataset: ClipSource, row: int, access: ShardAccess) -> EncodedSlice:
    """A few frames spread over a clip, read through the cache of whole shards."""
    spec = SampleSpec(Uniform(_PROBE_FRAMES), seed=0, num_random=0)
    step = Step(np.array([row]), np.array([0]), np.array([True]))
    return read_batches(dataset, [step], spec, access)[0].slices[0]


def _try(encoded: EncodedSlice, decoder: GpuDecoder, route: Route) -> str:
    """Decode on both devices and compare. Returns the problem in words, or ""."""
    import torch

    # Compare with the colours of the decoder that this clip would have.
    color: ColorOption = "auto" if route is Route.NVDEC else "bt601"
    try:
        expected = decode_with_pyav(encoded, color=color)
    except VideoError:
        return ""  # only this clip is damaged, not its group
    try:
        (decoded,) = decoder.submit([encoded], color=color).result()
        gpu = decoded.cpu().numpy()
    except torch.OutOfMemoryError:
        raise
    except (VideoError, RuntimeError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return f"{_SAYS}{lines[-1].strip()[-200:] if lines else 'nothing'}"
    difference = float(np.abs(gpu.astype(np.int16) - expected).mean())
    if difference <= _MAX_DIFFERENCE:
        return ""
    return f"their frames differ from the CPU's by {difference:.0f} levels on average"
