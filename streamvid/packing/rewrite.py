"""Makes a dataset from clips of other datasets: a pack whose sources are clips that are already packed or indexed.

Videos are copied, or stay in place: then rows of the new dataset name shards of the other datasets, as rows of
`streamvid index` name files. Journal, groups, worker processes and writers are a pack's.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.arrays import Float64, Int64, unique_rows
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.concat import ConcatDataset
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.members import MEMBERS
from streamvid.dataset.meta_columns import as_stored
from streamvid.dataset.roots import grant
from streamvid.errors import DatasetError, InputError
from streamvid.packing.clip_rows import place_of_clip
from streamvid.packing.destination import base_name, check_not_swapped, given_name
from streamvid.packing.fingerprints import fingerprint, source_details, versions
from streamvid.packing.job_spec import GroupTask, JobSpec, PackJob
from streamvid.packing.metadata import Metadata, MetadataLists
from streamvid.packing.options import PackOptions, Place
from streamvid.packing.pack import JobRun, run_job
from streamvid.packing.partition import Group, GroupCursor, partition
from streamvid.packing.places import root_name
from streamvid.packing.report import PackReport
from streamvid.packing.shard_writer import MOST_INDEXED
from streamvid.packing.source_video import SourceVideo
from streamvid.packing.stored_clips import ClipRun
from streamvid.packing.typed_columns import dump_json, json_value
from streamvid.storage.byte_range import FileVersion
from streamvid.storage.url import is_local, is_within, local_path, real_path, redact

_RUN_CLIPS: Final = 32
_RUN_BYTES: Final = 64 << 20
"""Clips and bytes that a worker takes at once."""


class Rewrite:
    """The clips of a new dataset, and how they are stored.

    Args:
        source: the dataset of the clips, or several concatenated.
        rows: int64 [clips], their rows, in the order in which they are written.
        keys: their keys in the new dataset; default: unchanged.

    Attributes:
        starts: int64 [runs + 1], the index in `rows` at which each run of clips begins; a run is one task for a worker.
        roots: folders and URLs of clips in place.

    Raises:
        InputError: a metadata column cannot be stored.
    """

    def __init__(self, source: ClipSource, rows: Int64, keys: Sequence[str] | None, *, copy: bool) -> None:
        self.source, self.rows, self.copy = source, rows, copy
        self.keys = (
            source.columns.get("key").take(pa.array(rows)) if keys is None else pa.array(keys, pa.large_string())
        )
        self._clips = source.clips.contiguous()
        self._columns = _stored_columns(source)
        self._changed = {
            name for part in self.parts for overlay in part.manifest.overlays for name, _ in overlay.columns
        }
        if copy and source.clips.files is not None and MEMBERS in self._columns:
            # The column with members of an indexed tar, to which the new dataset does not refer.
            left = pa.array(source.clips.files.root >= 0)
            self._columns[MEMBERS] = pc.if_else(left, None, self._columns[MEMBERS])
            self._changed.add(MEMBERS)
        self.sizes = _sizes(source)[rows]
        self.starts = _runs(self.sizes)
        self.roots: dict[str, int] = {}
        self._marks: dict[str, str] = {}
        if not copy:
            self._find_places()

    def _find_places(self) -> None:
        """Find the roots that the clips need, and the versions of tars."""
        clips, rows = self._clips, self.rows
        root = np.full(len(rows), -1) if clips.files is None else clips.files.root[rows].astype(np.int64)
        shard = clips.shard[rows].astype(np.int64)
        first, _ = unique_rows(shard, root + 1)
        for at in np.sort(first).tolist():
            files = self.source.shard_files[int(shard[at])]
            self.roots.setdefault(
                _plain(files.roots[int(root[at])] if root[at] >= 0 else files.dataset), len(self.roots)
            )
        tars = {
            owner.path("tar"): owner.entry.bytes
            for s in np.unique(shard)
            if (owner := self.source.shard_files[s]).entry.has_tar
        }
        for (path, size), found in zip(tars.items(), source_details(list(tars)), strict=True):
            if found.size != size:
                raise DatasetError(f"{redact(path)} is missing or has another size: run streamvid verify")
            self._marks[path] = found.mark

    @property
    def parts(self) -> Sequence[Dataset]:
        """The datasets of the clips."""
        if isinstance(self.source, ConcatDataset):
            return self.source.datasets
        assert isinstance(self.source, Dataset)
        return (self.source,)

    def digest(self) -> str:
        """SHA-256 of everything that determines the content of the new dataset's clips."""
        digest = hashlib.sha256(self.rows.tobytes())
        digest.update("\n".join(self.keys.to_pylist()).encode())
        for part in self.parts:
            digest.update(part.manifest.to_json())
        digest.update(json.dumps([self.copy, list(self.roots), self._marks]).encode())
        return digest.hexdigest()

    def task(self, group: Group, cursor: GroupCursor) -> GroupTask:
        """A group from a cursor on."""
        first, stop = int(self.starts[cursor.source]), int(self.starts[group.stop])
        rows = self.rows[first:stop]
        sums = self.source.checksums(rows)
        bounds = self.starts[cursor.source : group.stop + 1].tolist()
        runs = tuple(
            self._run(slice(start, end), sums[start - first : end - first]) for start, end in itertools.pairwise(bounds)
        )
        number = np.sort(rows)
        taken = pa.array(number)
        table = pa.table({name: column.take(taken) for name, column in self._columns.items()})
        has = np.ones((1, table.num_columns), dtype=bool)
        metadata = Metadata(number, self._texts(number, table), table, pa.schema([]), np.zeros(1, dtype=np.int64), has)
        return GroupTask(group, cursor, runs, metadata)

    def _texts(self, rows: Int64, table: pa.Table) -> pa.Array:
        """The metadata of rows as JSON objects; `table` has their columns."""
        texts = self._clips.meta.array.take(pa.array(rows)).combine_chunks()
        changed = self._changed & set(table.column_names)
        if not changed:
            return texts
        found = []
        for row, text, new in zip(
            rows.tolist(), texts.to_pylist(), table.select(sorted(changed)).to_pylist(), strict=True
        ):
            try:
                merged = json.loads(text) | new
            except (ValueError, TypeError, RecursionError) as error:
                raise DatasetError(
                    f"the metadata of clip {self.source.key(row)!r} are no JSON object: {error}"
                ) from error
            found.append(
                dump_json(
                    {
                        name: json_value(value)
                        for name, value in merged.items()
                        if name not in changed or value is not None
                    }
                )
            )
        return pa.array(found, pa.large_string())

    def _run(self, some: slice, sums: Sequence[str]) -> ClipRun:
        rows, source = self.rows[some], self.source
        numbers, shard = np.unique(self._clips.shard[rows], return_inverse=True)
        return ClipRun(
            **run_of(some.start, int(self.sizes[some].sum())),
            clips=replace(self._clips.take(rows), shard=shard.astype(np.int32)),
            shards=tuple(replace(source.shard_files[s], cache=None) for s in numbers.tolist()),
            keys=tuple(self.keys[some].to_pylist()),
            numbers=tuple(rows.tolist()),
            sums=tuple(sums),
            places=() if self.copy else tuple(map(self._place, rows.tolist(), sums)),
        )

    def _place(self, row: int, sha256: str) -> Place:
        """The columns with the location of a clip in place."""
        source, clips, s = self.source, self._clips, int(self._clips.shard[row])
        files, version = source.shard_files[s], source.version(row)
        root: str = files.dataset
        file: str = files.entry.file("tar")
        if version is None:
            version = FileVersion(files.entry.bytes, self._marks[files.path("tar")])
        else:
            assert clips.files is not None
            root, file = files.roots[int(clips.files.root[row])], clips.files.file[row]
        part = int(clips.mp4_offset[row]), int(clips.mp4_size[row])
        return place_of_clip(part, self.roots[_plain(root)], file, version, local=is_local(root), sha256=sha256)


@dataclass(frozen=True)
class RewriteSpec(JobSpec):
    """The specification of a rewrite. Its sources are runs of clips, whose rows are looked up when their group is
    packed."""

    rewrite: Rewrite = field(kw_only=True)

    @property
    def videos(self) -> int:
        """Number of clips."""
        return len(self.rewrite.rows)

    def task(self, group: Group, cursor: GroupCursor) -> GroupTask:
        """A group from a cursor on."""
        return self.rewrite.task(group, cursor)


def plan_rewrite(
    rewrite: Rewrite, destination: str, shard_size: int, name: str | None, settings: Mapping[str, object]
) -> RewriteSpec:
    """Determine everything that the bytes of the new dataset depend on.

    Args:
        shard_size: the most bytes of tar in a shard, unless a single clip is larger.
        name: the dataset's name; by default the last component of the destination.

    Raises:
        InputError: the destination contains source clips, or a dataset there cannot name their files.
    """
    _check_destination(rewrite, destination)
    sizes = [int(size) for size in np.add.reduceat(rewrite.sizes, rewrite.starts[:-1])]
    if not rewrite.copy:
        sizes = (np.diff(rewrite.starts) * -(-shard_size // MOST_INDEXED)).tolist()
    sources = [
        SourceVideo(**run_of(start, size)) for start, size in zip(rewrite.starts[:-1].tolist(), sizes, strict=True)
    ]
    name = given_name(name, base_name(destination))
    whole: dict[str, object] = {"name": name, "shard_size": shard_size, "copy": rewrite.copy, **settings}
    mark = fingerprint(rewrite.digest(), settings=whole, versions=versions(), base="")
    options = PackOptions("any", in_place=None if rewrite.copy else "packets")
    roots = tuple(root_name(root, destination) for root in rewrite.roots)
    return RewriteSpec(
        job=PackJob(mark, shard_size, options, versions(), roots),
        sources=sources,
        metadata=MetadataLists().finish(pa.schema([])),
        groups=partition(sizes, shard_size),
        name=name,
        classes=rewrite.source.classes,
        settings=whole,
        rewrite=rewrite,
    )


def run_rewrite(spec: RewriteSpec, run: JobRun) -> PackReport:
    """Write the dataset, or the rest of it; arguments and errors as in `streamvid.packing.pack.run_job`."""
    report = run_job(spec, run)
    if spec.rewrite.roots:
        grant(run.destination, spec.rewrite.roots)
    return report


def run_of(start: int, size: int) -> dict[str, Any]:
    """The fields of `SourceVideo` that a run of clips has."""
    return {"path": "", "name": f"the clips from {start} on", "key": "", "size": size, "needed": True}


def _plain(root: str) -> str:
    return local_path(root) if is_local(root) else root.rstrip("/")


def _check_destination(rewrite: Rewrite, destination: str) -> None:
    shown = redact(destination)
    check_not_swapped((), destination)
    for place in {place for files in rewrite.source.shard_files for place in (files.dataset, *files.roots)}:
        if is_within(real_path(place), real_path(destination)):
            raise InputError(
                f"{shown} contains source clips of the new dataset, {redact(place)}: choose another destination"
            )
    secret = next((root for root in rewrite.roots if not is_local(root) and redact(root) != root), None)
    if secret is not None:
        raise InputError(
            f"the videos would stay in {redact(secret)}, whose URL holds a password or a signature, which no dataset "
            "stores: give one without, or copy them (--copy)"
        )
    local = None if is_local(destination) else next(filter(is_local, rewrite.roots), None)
    if local is not None:
        raise InputError(f"the dataset {shown} cannot name local files, such as those of {local}: copy them (--copy)")


def _stored_columns(source: ClipSource) -> dict[str, pa.Array]:
    """The metadata columns in their types on disk."""
    meta = source.columns.meta
    for error in meta.errors.values():
        raise InputError(f"this cannot be one dataset: {error}")
    return {name: as_stored(meta.get(name), meta.parquet_types.get(name, "")) for name in meta.names}


def _sizes(source: ClipSource) -> Float64:
    """float64 [clips]: bytes of each clip. For clips that share a file, only the sum is known."""
    clips = source.clips
    sizes = clips.mp4_size.astype(np.float64)
    if clips.files is not None:
        file = clips.files.file.array.combine_chunks().dictionary_encode().indices.to_numpy()
        _, which = unique_rows(clips.mp4_offset, file, clips.files.root + 1)
        apart = clips.files.root >= 0
        sizes[apart] /= np.bincount(which)[which][apart]
    return sizes


def _runs(sizes: Float64) -> Int64:
    """int64 [runs + 1]: where runs of clips of these sizes begin."""
    starts, content = [0], 0.0
    for number, size in enumerate(sizes.tolist()):
        if number > starts[-1] and (number - starts[-1] >= _RUN_CLIPS or content + size > _RUN_BYTES):
            starts.append(number)
            content = 0.0
        content += size
    return np.array([*starts, len(sizes)], dtype=np.int64)
