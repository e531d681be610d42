"""Adds checksums that frame indexes lack because their clips were never read. `verify`, which reads the clips,
publishes them as a revision of the dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pyarrow as pa

from streamvid.dataset.clip_table import ClipTable
from streamvid.dataset.manifest import Manifest
from streamvid.dataset.revisions import change, changing
from streamvid.errors import DatasetError, InputError
from streamvid.packing.revise import RewrittenShards, remove_leftovers
from streamvid.storage import filesystem
from streamvid.storage.parquet import read_parquet
from streamvid.storage.parquet_writer import write_parquet
from streamvid.storage.url import join
from streamvid.text import format_count
from streamvid.video.frame_index import FrameIndex
from streamvid.video.index_file import encode_index


def fill_shard(files: Mapping[str, Path], clips: ClipTable, found: Mapping[int, FrameIndex], folder: Path) -> None:
    """Write the .packets and Parquet files of a shard again, as `new.packets` and `new.parquet` in a new folder.

    Args:
        files: the shard's current files.
        found: by row, the frame indexes with new checksums; nothing else in them has changed.
        folder: a local folder.
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
    write_parquet(table, folder / "new.parquet", group_rows=max(1, len(table)))


def publish_shards(path: str, manifest: Manifest, work: Path, clips: int) -> str:
    """Publish rewritten shards with new names. The old shards stay, for current readers.

    Args:
        work: a folder with a subfolder of new files for each shard, by its name.
        clips: number of clips to which checksums were added.

    Returns:
        the result in words.
    """
    try:
        with changing(path) as base, RewrittenShards(base) as new:
            if base.manifest != manifest:
                raise InputError("the dataset was changed meanwhile")
            remove_leftovers(base)
            for entry in manifest.shards:
                if (folder := work / entry.name).is_dir():
                    packets, parquet = (folder / "new.packets").read_bytes(), (folder / "new.parquet").read_bytes()
                    made = replace(
                        entry,
                        name=f"{new.number():08d}",
                        packets_sha256=sha256(packets).hexdigest(),
                        parquet_sha256=sha256(parquet).hexdigest(),
                        origin=entry.identity,
                    )
                    filesystem.write_bytes(join(path, made.file("packets")), packets)
                    filesystem.write_bytes(join(path, made.file("parquet")), parquet)
                    new.put(entry.name, made)
            new.publish(replace(manifest, change=change("verify", clips)))
    except (InputError, DatasetError, OSError) as error:
        return f"the checksums of {format_count(clips, 'clip')} could not be added to the dataset: {error}"
    return f"checksums of {format_count(clips, 'clip')} are stored from now on"
