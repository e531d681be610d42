"""Refuses clips, before a run, that DALI's decoders fail on, which would end an epoch in the middle, or decode wrongly
without an error. docs/dali-notes.md has the faults.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from streamvid.arrays import Int64
from streamvid.bitstream.mpeg4 import video_object_layers
from streamvid.bitstream.session_fault import needs_packets, session_fault
from streamvid.dataset.clip_source import ClipSource
from streamvid.decode.clip_groups import ClipGroup, group_clips, header_faults
from streamvid.decode.dali_cache_guard import mixed_up
from streamvid.decode.session_key import stream_headers
from streamvid.errors import InputError
from streamvid.video.gpu_support import Route

_CPU_CODECS: Final = ("vp8", "vp9", "mjpeg")


def check_decodable(dataset: ClipSource, rows: Int64, *, device_id: int | None) -> None:
    """Refuse clips that DALI's decoder on this device is known to fail on, or to decode wrongly.

    Args:
        dataset: the dataset.
        rows: int64 [clips], the rows that will be used.
        device_id: the GPU's number, or None for the CPU.

    Raises:
        InputError: there are such clips; the message names them, the reason and the remedy.
    """
    clips = dataset.clips
    if not all(dataset.shards[s].has_tar for s in np.unique(clips.shard[rows]).tolist()):
        raise InputError('engine="dali" reads shards alone, and this dataset has clips outside: give engine="default"')
    non_displayed = clips.frames < clips.packets
    problems: list[str] = []
    decodable: list[Int64] = []
    for group, members in group_clips(dataset, rows).items():
        reason = _problem(group, on_gpu=device_id is not None)
        if group.codec == "vp8" and not reason:
            # DALI counts packets as frames. An edit list hides packets, too; treating both alike costs only VP8 that
            # was cut.
            hidden = members[non_displayed[members]]
            if len(hidden):
                problems.append(group.describe(dataset, hidden, "DALI counts its non-displayed packets as frames"))
            decodable.append(members[~non_displayed[members]])
        elif reason:
            problems.append(group.describe(dataset, members, reason))
        else:
            decodable.append(members)
    if device_id is not None and decodable:
        left = np.concatenate(decodable)
        for reason, members in header_faults(dataset, left, _header_fault).items():
            for group, some in group_clips(dataset, members).items():
                problems.append(group.describe(dataset, some, reason))
            left = np.setdiff1d(left, members)
        mixed = left[mixed_up(dataset, left, device_id)]
        for group, members in group_clips(dataset, mixed).items():
            reason = "DALI's decoder cache mixes them up with clips of another height that are coded alike"
            problems.append(group.describe(dataset, members, reason))
    if problems:
        raise InputError(
            f'engine="dali" cannot decode {"; ".join(problems)}: give engine="default", leave them out, '
            "or pack them with --codec vp9"
        )


def _header_fault(codec: str, stsd: bytes, width: int, height: int) -> str:
    """The fault of DALI's decoder on a GPU that a stream's headers would trigger."""
    if needs_packets(codec, stsd, native=False) and codec == "h264":
        return "it may be coded in fields, which DALI garbles"
    try:
        headers = stream_headers(codec, stsd)
        fault = session_fault(codec, headers, width, height, native=True)
        if codec == "mpeg4" and any(layer.splits_b_vops for layer in video_object_layers(headers)):
            fault = fault or "it may have B-VOPs with empty video packets, which NVDEC garbles"
    except ValueError:
        return "its sample description is damaged"
    return fault.replace("decode sessions", "DALI's decoder")


def _problem(group: ClipGroup, *, on_gpu: bool) -> str:
    """Why DALI does not decode a group on this device; "" if it does."""
    if group.support.route is Route.IMAGE:
        return "on a GPU its graph takes no images" if on_gpu else ""
    if on_gpu:
        return group.support.dali or (group.support.reason if group.support.route is Route.CPU else "")
    return "" if group.codec in _CPU_CODECS else "DALI's CPU decoder knows VP8, VP9 and Motion JPEG alone"
