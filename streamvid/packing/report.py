"""The result of a pack: `PackReport` for its caller, and pack-report.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from streamvid.dataset.manifest import Manifest, ShardEntry
from streamvid.packing.fingerprints import Json, to_json
from streamvid.packing.job_spec import JobSpec
from streamvid.packing.journal import Notice, Rejected
from streamvid.packing.labels import Join

_REASONS: Final = 50
"""Most frequent reasons that pack-report.json lists; the others are summed up."""
_OF_CLIPS: Final = ("compatible_with", "cutting", "exact_cuts", "fps", "track", "transcode")
"""The fields of `PackOptions` that determine what clips are made of a video."""


@dataclass(frozen=True)
class PackReport:
    """The result of `pack`.

    Attributes:
        destination: path or URL of the dataset.
        manifest: the content of dataset.json.
        rejected: the rejected videos, in the order of the sources.
        unlabelled: number of videos without a label; 0 if no video has one.
        elapsed: duration of the call in seconds.
        videos: number of sources, without those skipped.
        skipped: names of the sources that the dataset to append to already had.
        clips, bytes: number of clips added to the dataset, and bytes of their tars.
        resumed: number of these clips that an earlier run of the same pack had written.
        was_there: whether the same pack had been finished before, so that nothing was written.
        notices: remarks about packed videos, such as that audio was left out.
        joins: how the rows of each list of labels or metadata matched the videos.
    """

    destination: str
    manifest: Manifest
    rejected: tuple[Rejected, ...]
    unlabelled: int
    elapsed: float
    videos: int = 0
    skipped: tuple[str, ...] = ()
    clips: int = 0
    bytes: int = 0
    resumed: int = 0
    was_there: bool = False
    joins: tuple[Join, ...] = ()
    notices: tuple[Notice, ...] = ()


def report_document(
    spec: JobSpec,
    added: Sequence[ShardEntry],
    rejected: Sequence[Rejected],
    notices: Sequence[Notice],
    *,
    seconds: float,
    revision: int,
) -> dict[str, Json]:
    """The content of pack-report.json besides the fingerprint. It has no times, so that the same pack gives the same
    report.

    Args:
        seconds: total duration of the clips in the shards.
    """
    reasons = Counter(video.reason for video in rejected).most_common()
    return {
        "revision": revision,
        "videos": spec.videos,
        "skipped": len(spec.skipped),
        "unlabelled": spec.unlabelled,
        "clips": sum(entry.clips for entry in added),
        "frames": sum(entry.frames for entry in added),
        "seconds": seconds,
        "shards": len(added),
        "bytes": sum(entry.bytes for entry in added),
        "rejected": len(rejected),
        "reasons": [{"reason": reason, "videos": count} for reason, count in reasons[:_REASONS]],
        "other_reasons": sum(count for _, count in reasons[_REASONS:]),
        "notices": [{"notice": notice.text, "videos": notice.videos, "first": notice.first} for notice in notices],
        # Without the folder, because the same list in another folder makes the same dataset.
        "lists": [
            {
                "name": join.path.rpartition("/")[2],
                "rows": join.rows,
                "videos": join.joined,
                "missing": join.missing,
                "surplus": join.surplus,
            }
            for join in spec.joins
        ],
        "options": to_json(spec.settings),
        "versions": dict(spec.job.versions),
    }


def other_options(spec: JobSpec, report: Mapping[str, object] | None) -> list[str]:
    """The names of the options that determine clips and differ from those of a dataset's last pack, by its report."""
    before, now = (report or {}).get("options"), to_json(spec.settings)
    if not isinstance(before, dict) or not isinstance(now, dict):
        return []
    # Without a rate, no video has needed one. An index transcodes nothing in any case.
    left_out = {"fps"} if None in (before.get("fps"), now.get("fps")) else set()
    left_out |= {"compatible_with"} if before.get("in_place") else set()
    return [name for name in _OF_CLIPS if name in before and name not in left_out and before[name] != now[name]]
