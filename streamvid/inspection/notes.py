"""What lies beside a dataset, and is no problem."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from streamvid.dataset.manifest import SHARD_EXTENSIONS, SHARD_FOLDER, UNFINISHED_FILE, Manifest
from streamvid.dataset.revisions import kept_manifests
from streamvid.errors import DatasetError
from streamvid.storage import filesystem
from streamvid.storage.url import join

_SHARD_FILE: Final = re.compile(rf"([0-9]{{8}})\.({'|'.join(SHARD_EXTENSIONS)})")
_NAMED: Final = 5
"""The most shards that a message names; any further ones are counted."""


def notes(path: str, manifest: Manifest) -> Iterator[str]:
    """Files beside the dataset that readers ignore."""
    folder = join(path, SHARD_FOLDER)
    known = {entry.name for one in (manifest, *kept_manifests(path)) for entry in one.shards}
    try:
        files = filesystem.list_files(folder) if manifest.shards else []
    except DatasetError:  # storage without listing, such as HTTP, or no folder, which is reported as a problem
        files = []
    matches = (_SHARD_FILE.fullmatch(file.rpartition("/")[2]) for file in files)
    strays = sorted({match.group(1) for match in matches if match} - known)
    if strays:
        yield (
            f"{SHARD_FOLDER}/ holds {named(strays)}, not named in dataset.json: "
            "left from a pack that has not finished, or of another version of the dataset"
        )
    if filesystem.exists(join(path, UNFINISHED_FILE)):
        yield f"there is {UNFINISHED_FILE}: a pack to this destination is running or was interrupted"


def named(shards: Sequence[str]) -> str:
    """Some shards in words."""
    more = f" and {len(shards) - _NAMED:,} more" if len(shards) > _NAMED else ""
    return f"shard{'s' if len(shards) > 1 else ''} {', '.join(shards[:_NAMED])}{more}"
