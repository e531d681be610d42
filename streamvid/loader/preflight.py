"""Before a run: can this GPU decode these clips, and rightly? What it cannot do must not surface in the middle of an
epoch."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from streamvid.arrays import Int64
from streamvid.dataset.clip_source import ClipSource
from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.dali_cache_guard import shared_guard
from streamvid.decode.gpu import GpuDecoder, why_on_cpu
from streamvid.errors import InputError, VideoError
from streamvid.fetch.plan_samples import SampleSpec, encode, plan_samples
from streamvid.fetch.shard_access import ShardAccess
from streamvid.plan.epoch_plan import Step
from streamvid.sampling.spread import Uniform
from streamvid.transform.spec import Transform
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.stored_clip import UNORDERED

log = logging.getLogger(__name__)

_PIX_FMTS: Final = ("yuv420p", "yuvj420p", "yuv420p10le")
_PROBE_FRAMES: Final = 3
_MOST_DIFFERENT: Final = 6.0
"""Mean difference in levels between the same frames from GPU and CPU above which they are not the same frames; about
1 is usual."""
_REMEDY: Final = "convert them (8-bit 4:2:0 H.264 with even sides always works), leave them out, or give device='cpu'"


@dataclass(frozen=True)
class _Kind:
    """Clips that a GPU decodes alike."""

    codec: str
    profile: str
    pix_fmt: str
    intra: bool
    odd: bool
    traits: tuple[str, ...]

    @property
    def why_on_cpu(self) -> str:
        """As of `streamvid.decode.gpu.why_on_cpu`."""
        return why_on_cpu(self.codec, in_order=UNORDERED not in self.traits)


def check_decodable(dataset: ClipSource, rows: Int64, *, device_id: int, probe: Callable[[int], EncodedSlice]) -> None:
    """Find out whether the GPU decodes the clips rightly: from what is known, and by trying a few of every kind.

    Of every kind the smallest and the largest clip are decoded on the GPU and on the CPU, and compared.

    Args:
        dataset: the dataset.
        rows: int64 [clips], the rows that will be used.
        device_id: the GPU.
        probe: gives a few frames of a row's clip: see `probe_slice`.

    Raises:
        InputError: some cannot be decoded, or come out wrong. Names kinds, clips and the remedy.
    """
    kinds = _kinds(dataset, rows)
    for kind in [kind for kind in kinds if kind.why_on_cpu]:
        members = kinds.pop(kind)
        log.warning("%d clips of %s are decoded on the CPU: %s", len(members), kind.codec, kind.why_on_cpu)
    problems = {kind: _known_problem(kind) for kind in kinds}
    area = dataset.clips.width.astype(np.int64) * dataset.clips.height
    decoder = GpuDecoder(device_id=device_id, threads=2, max_batch=2)
    _guard_sizes(dataset, rows, device_id, decoder)
    try:
        for kind, members in kinds.items():
            if problems[kind]:
                continue
            smallest, largest = members[np.argmin(area[members])], members[np.argmax(area[members])]
            for row in dict.fromkeys((int(smallest), int(largest))):
                problem = _try(probe(row), decoder)
                if problem:
                    problems[kind] = problem
                    decoder.close()
                    # DALI's pipeline is of no use after an error.
                    decoder = GpuDecoder(device_id=device_id, threads=2, max_batch=2)
                    break
    finally:
        decoder.close()
    found = [(kind, why) for kind, why in problems.items() if why]
    if found:
        raise InputError(_sentence(dataset, [(kind, why, kinds[kind]) for kind, why in found]))


def known_problems(dataset: ClipSource) -> list[tuple[str, str, Int64]]:
    """What a GPU run would refuse of a dataset, as far as its rows tell, without a GPU: kinds of clips in words, why,
    and their rows, int64 [clips]."""
    found = []
    for kind, rows in _kinds(dataset, np.arange(len(dataset), dtype=np.int64)).items():
        if not kind.why_on_cpu and (why := _known_problem(kind)):
            found.append((" ".join(text for text in (kind.codec, kind.profile, kind.pix_fmt) if text), why, rows))
    return found


def left_to_cpu(dataset: ClipSource) -> list[tuple[str, str, int]]:
    """What a GPU run decodes on the CPU: codecs, why, and how many clips."""
    found: Counter[tuple[str, str]] = Counter()
    for kind, rows in _kinds(dataset, np.arange(len(dataset), dtype=np.int64)).items():
        found[kind.codec, kind.why_on_cpu] += len(rows)
    return [(codec, why, count) for (codec, why), count in found.items() if why]


def _kinds(dataset: ClipSource, rows: Int64) -> dict[_Kind, Int64]:
    """The rows by kind."""
    clips = dataset.clips
    odd = (clips.width % 2 + clips.height % 2) > 0
    intra = (clips.random_access == clips.packets) & (clips.packets > 1)
    columns = (clips.codec.codes, clips.profile.codes, clips.pix_fmt.codes, intra, odd, clips.traits.codes)
    # Each kind as one number: NumPy sorts numbers twenty times as fast as rows of them.
    sizes = tuple(int(column.max(initial=0)) + 1 for column in columns)
    kinds = np.ravel_multi_index(tuple(column[rows].astype(np.int64) for column in columns), sizes)
    numbers, which = np.unique(kinds, return_inverse=True)
    unique = np.stack(np.unravel_index(numbers, sizes), axis=1)
    return {
        _Kind(
            clips.codec.names[codec], clips.profile.names[profile], clips.pix_fmt.names[pix_fmt],
            bool(is_intra), bool(is_odd), tuple(clips.traits.names[traits].split(",")),
        ): rows[which == number]
        for number, (codec, profile, pix_fmt, is_intra, is_odd, traits) in enumerate(unique.tolist())
    }  # fmt: skip


def _known_problem(kind: _Kind) -> str:
    """What decodes wrongly without DALI noticing, or fails in a way that tells nothing; empty if nothing is known."""
    if kind.pix_fmt not in _PIX_FMTS:
        return "NVDEC behind DALI decodes 4:2:0 alone, with 8 or 10 bits"
    if kind.odd:
        return "DALI's GPU decoder garbles frames with an odd width or height"
    if "lead-in" in kind.traits and kind.codec in ("h264", "hevc"):
        return "they do not begin with a picture that a decoder can start from"
    if "show-existing" in kind.traits or "superframes" in kind.traits:
        return "DALI's GPU decoder gets frames wrong where VP9 has hidden pictures"
    if kind.codec == "h264" and kind.intra:
        return "DALI's GPU decoder fails on H.264 of I-frames alone"
    return ""


def _guard_sizes(dataset: ClipSource, rows: Int64, device_id: int, decoder: GpuDecoder) -> None:
    """Of the sizes that DALI mixes up let the more frequent ones into it, and say which clips go to the CPU instead."""
    clips = dataset.clips
    table = np.stack([clips.stsd_id[rows], clips.codec.codes[rows], clips.width[rows], clips.height[rows]], axis=1)
    unique, counts = np.unique(table, axis=0, return_counts=True)
    sizes: Counter[tuple[str, int, int]] = Counter()
    for (stsd, code, width, height), count in zip(unique.tolist(), counts.tolist(), strict=True):
        codec = clips.codec.names[code]
        if decoder.leaves_to_dali(codec, clips.stsds[stsd], width, height):
            sizes[codec, width, height] += count
    guard = shared_guard()
    guard.prefer(device_id, sizes)
    for (codec, width, height), count in sizes.items():
        if not guard.admit(device_id, codec, width, height):
            log.warning(
                "%d clips of %s %dx%d are decoded on the CPU: DALI would mix them up with other heights coded alike",
                count, codec, width, height,
            )  # fmt: skip


def probe_slice(dataset: ClipSource, row: int, access: ShardAccess) -> EncodedSlice:
    """A few frames from all over a clip, read by way of whole shards."""
    recipe = SampleSpec(Uniform(_PROBE_FRAMES), Transform(), 0)
    batch = plan_samples(dataset, Step(np.array([row]), np.array([0]), np.array([True])), recipe)
    return encode(dataset, [batch], recipe, access)[0].slices[0]


def _try(part: EncodedSlice, decoder: GpuDecoder) -> str:
    """Decode on both devices and compare; what is wrong, or nothing."""
    try:
        (gpu,) = _on_host(decoder.decode([part]))
    except (VideoError, RuntimeError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return f"DALI says: {lines[-1].strip()[-200:] if lines else 'nothing'}"
    difference = float(np.abs(gpu.astype(np.int16) - decode_with_pyav(part)).mean())
    return (
        f"their frames differ from the CPU's by {difference:.0f} levels on average"
        if difference > _MOST_DIFFERENT
        else ""
    )


def _on_host(decoded: Any) -> list[Any]:
    return [frames.cpu().numpy() for frames in decoded]


def _sentence(dataset: ClipSource, found: Sequence[tuple[_Kind, str, Int64]]) -> str:
    parts = []
    for kind, why, members in found:
        what = " ".join(text for text in (kind.codec, kind.profile, kind.pix_fmt) if text)
        keys = ", ".join(dataset.key(row) for row in members[:3].tolist())
        parts.append(f"{len(members)} clips of {what} such as {keys} ({why})")
    return f"this GPU cannot decode {'; '.join(parts)}: {_REMEDY}"
