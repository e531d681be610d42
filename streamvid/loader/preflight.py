"""The preflight check of a GPU run: does this GPU decode these clips, and rightly? An epoch must not stop in the middle
for a clip that it does not decode."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

import numpy as np

from streamvid.arrays import Int64, unique_rows
from streamvid.dataset.clip_source import ClipSource
from streamvid.decode.clip_groups import group_clips
from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.dali_cache_guard import shared_guard
from streamvid.decode.gpu import GpuDecoder
from streamvid.errors import InputError, VideoError
from streamvid.fetch.encoded_batch import read_batches
from streamvid.fetch.plan_samples import SampleSpec, plan_samples
from streamvid.fetch.shard_access import ShardAccess
from streamvid.plan.epoch_plan import Step
from streamvid.sampling.spread import Uniform
from streamvid.video.gpu_support import Route
from streamvid.video.packet_selection import EncodedSlice

log = logging.getLogger(__name__)

_PROBE_FRAMES: Final = 3
_MAX_DIFFERENCE: Final = 6.0
"""Mean difference in levels above which frames from GPU and CPU are not the same frames; usual is about 1."""
_REMEDY: Final = "transcode them (8-bit 4:2:0 H.264 with even sides always works), leave them out, or give device='cpu'"


def check_decodable(
    dataset: ClipSource, rows: Int64, *, device_id: int, probe: Callable[[int], EncodedSlice], sessions: bool = True
) -> None:
    """Check that the GPU decodes clips rightly: by the table of `streamvid.video.gpu_support`, and by trying.

    Of every group that the table lets through, the smallest and the largest clip are decoded on the GPU and on the CPU,
    and compared.

    Args:
        dataset: the dataset.
        rows: int64 [clips], the rows that will be used.
        device_id: the GPU.
        probe: gives a few frames of a row's clip: see `probe_slice`.
        sessions: False: DALI decodes what the persistent sessions could.

    Raises:
        InputError: some cannot be decoded, or come out wrong. Names codecs, clips and the remedy.
    """
    groups = group_clips(dataset, rows)
    problems: list[str] = []
    for group, members in groups.items():
        if group.support.route is Route.NONE:
            problems.append(group.describe(dataset, members, group.support.reason))
        elif group.support.route is Route.CPU:
            log.warning("%d clips of %s are decoded on the CPU: %s", len(members), group.codec, group.support.reason)
    area = dataset.clips.width.astype(np.int64) * dataset.clips.height
    decoder = GpuDecoder(device_id=device_id, threads=2, max_batch=2, sessions=sessions)
    _guard_sizes(dataset, rows, device_id, decoder)
    try:
        for group, members in groups.items():
            if group.support.route not in (Route.NVDEC, Route.DALI):
                continue
            smallest, largest = members[np.argmin(area[members])], members[np.argmax(area[members])]
            for row in dict.fromkeys((int(smallest), int(largest))):
                if problem := _try(probe(row), decoder):
                    problems.append(group.describe(dataset, members, problem))
                    decoder.close()
                    # After an error a DALI pipeline is of no use.
                    decoder = GpuDecoder(device_id=device_id, threads=2, max_batch=2, sessions=sessions)
                    break
    finally:
        decoder.close()
    if problems:
        raise InputError(f"this GPU cannot decode {'; '.join(problems)}: {_REMEDY}")


def unsupported_clips(dataset: ClipSource) -> list[tuple[str, str, Int64]]:
    """What a GPU run would refuse by the table of `streamvid.video.gpu_support`: codec, profile and pixel format; why;
    and the clips' rows, int64 [clips]. Needs no GPU."""
    groups = group_clips(dataset).items()
    return [(str(group), group.support.reason, rows) for group, rows in groups if group.support.route is Route.NONE]


def cpu_decoded_clips(dataset: ClipSource) -> list[tuple[str, str, int]]:
    """What a GPU run decodes on the CPU: codec, why, and how many clips."""
    found: Counter[tuple[str, str]] = Counter()
    for group, rows in group_clips(dataset).items():
        if group.support.route is Route.CPU:
            found[group.codec, group.support.reason] += len(rows)
    return [(codec, why, count) for (codec, why), count in found.items()]


def _guard_sizes(dataset: ClipSource, rows: Int64, device_id: int, decoder: GpuDecoder) -> None:
    """Of sizes that DALI's decoder cache mixes up, admit the more frequent ones to DALI, and log what the CPU gets."""
    clips = dataset.clips
    # Of a sample description the bit depth alone counts, and clips of one pixel format have the same: nearly every clip
    # may have a sample description of its own.
    columns = clips.codec.codes, clips.pix_fmt.codes, clips.width, clips.height
    first, which = unique_rows(*(column[rows] for column in columns))
    sizes: Counter[tuple[str, int, int]] = Counter()
    for row, count in zip(rows[first].tolist(), np.bincount(which).tolist(), strict=True):
        codec, width, height = clips.codec[row], int(clips.width[row]), int(clips.height[row])
        if decoder.uses_dali(codec, clips.stsds[clips.stsd_id[row]], width, height):
            sizes[codec, width, height] += count
    for size in shared_guard().prefer(device_id, sizes):
        log.warning(
            "%d clips of %s %dx%d are decoded on the CPU: DALI would mix them up with other heights coded alike",
            sizes[size], *size,
        )  # fmt: skip


def probe_slice(dataset: ClipSource, row: int, access: ShardAccess) -> EncodedSlice:
    """A few frames from all over a clip, read by way of whole shards."""
    spec = SampleSpec(Uniform(_PROBE_FRAMES), seed=0, num_random=0)
    batch = plan_samples(dataset, Step(np.array([row]), np.array([0]), np.array([True])), spec)
    return read_batches(dataset, [batch], access)[0].slices[0]


def _try(encoded: EncodedSlice, decoder: GpuDecoder) -> str:
    """Decode on both devices and compare: the problem in words, or ""."""
    try:
        (decoded,) = decoder.decode([encoded])
        gpu = decoded.cpu().numpy()
    except (VideoError, RuntimeError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return f"DALI says: {lines[-1].strip()[-200:] if lines else 'nothing'}"
    difference = float(np.abs(gpu.astype(np.int16) - decode_with_pyav(encoded)).mean())
    if difference <= _MAX_DIFFERENCE:
        return ""
    return f"their frames differ from the CPU's by {difference:.0f} levels on average"
