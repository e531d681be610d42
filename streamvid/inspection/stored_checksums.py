"""Checksums that the frame indexes of a dataset lack, as its clips were never read: `verify`, which reads them, adds
them as a revision of the dataset."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from streamvid.dataset.clip_table import ClipTable
from streamvid.dataset.forgotten import read_table, write_forgotten
from streamvid.dataset.manifest import FILE_NAME, Manifest
from streamvid.dataset.revisions import change, changing, publish_revision, rewritten_numbers
from streamvid.errors import DatasetError, InputError, StreamvidError
from streamvid.packing.tables import write_tables
from streamvid.storage import filesystem
from streamvid.storage.parquet import read_parquet
from streamvid.storage.retry import COMMAND_SECONDS, Retry
from streamvid.storage.url import join
from streamvid.video.frame_index import FrameIndex
from streamvid.video.index_file import encode_index


def fill_shard(files: Mapping[str, Path], clips: ClipTable, found: Mapping[int, FrameIndex], folder: Path) -> None:
    """Write the .packets and Parquet files of a shard again, as `new.packets` and `new.parquet` in a new folder.

    Args:
        files: of the shard as it is.
        clips: its rows.
        found: the frame indexes that have changed, by row: their checksums alone.
        folder: a local one.
    """
    packets = bytearray(files["packets"].read_bytes())
    table = read_parquet(str(files["parquet"]))
    crcs = table["index_crc32c"].to_pylist()
    for row, index in found.items():
        encoded, at = encode_index(index), int(clips.index_offset[row])
        packets[at : at + len(encoded.data)] = encoded.data
        crcs[row] = encoded.crc32c
    place = table.column_names.index("index_crc32c")
    table = table.set_column(place, table.schema.field(place), pa.array(crcs, pa.uint32()))
    folder.mkdir()
    (folder / "new.packets").write_bytes(packets)
    pq.write_table(table, folder / "new.parquet", compression="zstd", row_group_size=max(1, len(table)))


def publish_shards(path: str, manifest: Manifest, work: Path, clips: int) -> str:
    """Publish shards that were written again, with new names; the old ones stay for whoever reads them.

    Args:
        path: of the dataset.
        manifest: its dataset.json.
        work: a folder, in which that of a shard's name has its new files.
        clips: in how many clips checksums were added.

    Returns:
        what became of it, in words.
    """
    made: list[str] = []
    try:
        with changing(path) as base:
            if base.manifest != manifest:
                raise InputError("the dataset was changed meanwhile")
            numbers, shards, names = rewritten_numbers(path, manifest), [], {}
            for entry in manifest.shards:
                if (folder := work / entry.name).is_dir():
                    packets, parquet = (folder / "new.packets").read_bytes(), (folder / "new.parquet").read_bytes()
                    new = replace(
                        entry,
                        name=f"{next(numbers):08d}",
                        packets_sha256=sha256(packets).hexdigest(),
                        parquet_sha256=sha256(parquet).hexdigest(),
                        origin=entry.identity,
                    )
                    made += [join(path, new.file(extension)) for extension in new.checksums]
                    filesystem.write_bytes(join(path, new.file("packets")), packets)
                    filesystem.write_bytes(join(path, new.file("parquet")), parquet)
                    names[entry.name], entry = new.name, new
                shards.append(entry)
            changed = replace(manifest, shards=tuple(shards), change=change("verify", clips))
            tables = {}
            if manifest.forgotten is not None:
                table = _renamed(read_table(path, manifest, Retry.of(COMMAND_SECONDS)), names)
                named, data = write_forgotten(table, manifest.revision + 1)
                changed, tables = replace(changed, forgotten=named), {named.file: data}
            try:
                changed = replace(changed, tables=write_tables(path, changed))
                publish_revision(base, changed, tables)
            except BaseException:
                with suppress(StreamvidError, OSError):
                    if filesystem.read_bytes(join(path, FILE_NAME)) == base.document:
                        for file in made:
                            filesystem.remove_file(file)
                raise
    except (InputError, DatasetError, OSError) as error:
        return f"the checksums of {clips:,} clips could not be added to the dataset: {error}"
    return f"checksums of {clips:,} clips are stored from now on"


def _renamed(forgotten: pa.Table, names: Mapping[str, str]) -> pa.Table:
    """A table of forgotten clips with the new names of shards."""
    shards = [names.get(name, name) for name in forgotten["shard"].to_pylist()]
    return forgotten.set_column(0, forgotten.schema.field(0), pa.array(shards, pa.string()))
