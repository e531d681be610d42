"""Changes an existing dataset: opens it for a change, and publishes rewritten shards as a new revision."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from streamvid.dataset.dataset import Dataset
from streamvid.dataset.forgotten import read_table, write_forgotten
from streamvid.dataset.manifest import FILE_NAME, SHARD_EXTENSIONS, SHARD_FOLDER, Manifest, ShardEntry
from streamvid.dataset.revisions import (
    FIRST_REWRITTEN,
    Base,
    changing,
    kept_manifests,
    publish_revision,
    rewritten_numbers,
    table_files,
)
from streamvid.errors import DatasetError, InputError
from streamvid.packing.destination import consolidated_files, remove_temporaries, shard_files
from streamvid.packing.tables import write_tables
from streamvid.storage import filesystem
from streamvid.storage.local_writes import disk_errors_named
from streamvid.storage.retry import COMMAND_SECONDS, Retry
from streamvid.storage.threads import map_in_threads
from streamvid.storage.url import AnyPath, is_local, join, redact


@contextmanager
def opened_to_change(dataset: AnyPath, roots: Sequence[AnyPath]) -> Iterator[tuple[Base, Dataset]]:
    """A context with an open dataset, which no other process on this machine changes meanwhile.

    Raises:
        InputError: another process is changing the dataset, or has changed it meanwhile.
        DatasetError: the dataset is damaged.
        OSError: the disk is full.
    """
    with changing(dataset) as base, disk_errors_named(base.path, then="the dataset is as it was"):
        remove_leftovers(base)
        opened = Dataset.open(base.path, retry_for=COMMAND_SECONDS, roots=roots)
        if opened.manifest != base.manifest:
            raise InputError(f"another process has changed {redact(base.path)} meanwhile: run this again")
        yield base, opened


def remove_leftovers(base: Base) -> None:
    """Remove files that killed changes left in a local dataset, which is locked; elsewhere they may be another
    writer's."""
    if not is_local(base.path) or os.path.islink(join(base.path, SHARD_FOLDER)):
        return
    remove_temporaries(base.path)
    kept, newest = kept_manifests(base.path), base.manifest
    # A kept dataset.json that cannot be parsed may name any of the files.
    if {entry.revision for entry in kept}.issuperset(range(newest.oldest, newest.revision)):
        named, root = named_files([newest, *kept]), join(base.path, "")
        files = [root + name for name in table_files(base.path)] + consolidated_files(base.path)
        left = [file for file in files if file.removeprefix(root) not in named]
        for file in shard_files(base.path):
            number = os.path.basename(file).partition(".")[0]
            left += [file] * (int(number) >= FIRST_REWRITTEN and number not in named)
        map_in_threads(filesystem.remove_file, left)


def named_files(manifests: Sequence[Manifest]) -> set[str]:
    """The names of all shards and tables' files in the manifests."""
    named = {overlay.file for manifest in manifests for overlay in manifest.overlays}
    named |= {manifest.forgotten.file for manifest in manifests if manifest.forgotten is not None}
    named |= {file for manifest in manifests for table in manifest.tables for file in table.files}
    return named | {entry.name for manifest in manifests for entry in manifest.shards}


def forgotten_clips(base: Base) -> pa.Table:
    """The table of forgotten clips, see `streamvid.dataset.forgotten`."""
    return read_table(base.path, base.manifest, Retry.of(COMMAND_SECONDS))


class RewrittenShards:
    """The rewritten shards of a dataset. A context manager: if its body fails, their files are removed. If it fails as
    another process has purged the dataset meanwhile, which removes all files that are not named, an InputError says so.
    """

    def __init__(self, base: Base) -> None:
        self._base, self._written, self._published = base, list[str](), False
        self._numbers = rewritten_numbers(base.path, base.manifest)
        self._made: dict[str, ShardEntry] = {}

    def number(self) -> int:
        """The number for the next rewritten shard."""
        number = next(self._numbers)
        self._written += [f"{SHARD_FOLDER}/{number:08d}.{extension}" for extension in SHARD_EXTENSIONS]
        return number

    def put(self, name: str, entry: ShardEntry) -> None:
        """Replace the shard of a name by one whose files are written."""
        self._made[name] = entry

    def publish(
        self,
        manifest: Manifest,
        *,
        forgotten: pa.Table | None = None,
        tables: Mapping[str, bytes | Path] | None = None,
    ) -> Manifest:
        """Publish a revision with the new shards, their consolidated tables, and their names in the table of forgotten
        clips.

        Args:
            forgotten: the table of forgotten clips, if it has changed.
            tables: further files, as in `streamvid.dataset.revisions.publish_revision`, whose errors this raises.

        Returns:
            The new manifest.
        """
        base = self._base
        manifest = replace(manifest, shards=tuple(self._made.get(entry.name, entry) for entry in base.manifest.shards))
        files = dict(tables or {})
        if forgotten is None and manifest.forgotten is not None:
            forgotten = forgotten_clips(base)
        if forgotten is not None:
            named, data = write_forgotten(self._renamed(forgotten), base.manifest.revision + 1)
            manifest, files[named.file] = replace(manifest, forgotten=named), data
        manifest = replace(manifest, tables=write_tables(base.path, manifest, self._written))
        self._published = True
        return publish_revision(base, manifest, files)

    def _renamed(self, forgotten: pa.Table) -> pa.Table:
        """The table of forgotten clips with the names of the new shards."""
        names = pa.array([*self._made, ""], pa.string())
        new = pa.array([*(entry.name for entry in self._made.values()), ""], pa.string())
        shard = pc.coalesce(new.take(pc.index_in(forgotten["shard"], value_set=names)), forgotten["shard"])
        return forgotten.set_column(0, forgotten.schema.field(0), shard)

    def __enter__(self) -> RewrittenShards:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is None:
            return
        path, same = self._base.path, True
        with contextlib.suppress(Exception):
            # Keep the files if the interrupt came just after publishing.
            if same := filesystem.read_bytes(join(path, FILE_NAME)) == self._base.document:
                map_in_threads(filesystem.remove_file, [join(path, file) for file in self._written])
        if not same and not self._published and isinstance(error, DatasetError):
            raise InputError(f"another process has changed {redact(path)} meanwhile: run this again") from error
