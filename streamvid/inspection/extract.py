"""Extracts clips of a dataset: each as an MP4 that any player reads, or the image's file, with its metadata in a JSON
file."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from streamvid.checks import MAX_WORKERS, integer, suggest_keywords
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.manifest import FILE_NAME
from streamvid.dataset.selection import delivered
from streamvid.errors import ClipError, InputError
from streamvid.fetch.clip_file import ClipFile
from streamvid.packing.destination import holds_dataset, remove_temporaries
from streamvid.packing.keys import longer_keys
from streamvid.packing.typed_columns import dump_json, json_value
from streamvid.progress import Progress
from streamvid.storage.explain import explained
from streamvid.storage.folder_lock import lock_folder
from streamvid.storage.local_writes import name_new, written_beside
from streamvid.storage.url import given_path, is_local, local_path, redact
from streamvid.video.image import EXTENSIONS

_AT_ONCE: Final = 256
"""Clips whose metadata are taken together."""
_THREADS: Final = 8


@dataclass(frozen=True)
class Extracted:
    """The result of `extract`.

    Attributes:
        folder: where the files are.
        clips, bytes: number of clips written, and size of their MP4s and images.
        there: number of clips whose files existed already.
        bad: keys of damaged clips, and what is wrong with each; they have no files.
        elapsed: duration of the call in seconds.
    """

    folder: str
    clips: int
    bytes: int
    there: int
    bad: tuple[tuple[str, str], ...]
    elapsed: float


@suggest_keywords
def extract(
    dataset: Dataset | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    where: str | pc.Expression | None = None,
    keys: Sequence[str] | str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    progress: bool = True,
) -> Extracted:
    """Write clips as files, ``<key>.mp4`` and ``<key>.json``; images in their own format, such as ``<key>.jpg``. If a
    killed call is repeated, it resumes.

    The MP4 of a packed clip is that in the shard; for a clip in place, it is made of its packets. Keys that differ only
    in case get digits, because some file systems ignore case.

    Args:
        dataset: a path or URL, or a dataset.
        folder: a local folder; made if it is missing.
        where, keys: select clips as in `streamvid.Subset`; default: all.
        overwrite: replace files of these names.
        workers: number of clips that are read at the same time.
        progress: show a progress bar if stderr is a terminal.

    Raises:
        InputError: a file of such a name has other content, or a condition or key is invalid.
        DatasetError: the dataset or its storage cannot be read, or a file cannot be written.
    """
    started = time.monotonic()
    target = given_path(folder, "folder")
    if not is_local(target):
        raise InputError(f"clips are extracted into a local folder, which {redact(target)} is not")
    count = integer(_THREADS if workers is None else workers, "workers", most=MAX_WORKERS)
    opened = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    rows = delivered(opened, where=where, keys=keys)
    to = Path(local_path(target))
    if (to / FILE_NAME).exists() and holds_dataset(target):
        raise InputError(f"{target} is a dataset, not a place for its clips: give another folder")
    names = _shared_names(opened)
    clips = size = there = 0
    bad: list[tuple[str, str]] = []
    with (
        lock_folder(target, make=True),
        Progress("extracting", len(rows), enabled=progress) as bar,
        ThreadPoolExecutor(count) as pool,
        _ending(pool),
    ):
        remove_temporaries(target)
        for first in range(0, len(rows), _AT_ONCE):
            some = rows[first : first + _AT_ONCE].tolist()
            documents = _documents(opened, some)
            write = partial(_write, opened, to, names, overwrite=overwrite)
            for row, outcome in zip(some, pool.map(write, some, documents), strict=True):
                if isinstance(outcome, ClipError):
                    bad.append((opened.key(row), outcome.reason))
                elif outcome is None:
                    there += 1
                else:
                    clips, size = clips + 1, size + outcome
                bar.advance()
    return Extracted(str(to), clips, size, there, tuple(bad), time.monotonic() - started)


@contextmanager
def _ending(pool: ThreadPoolExecutor) -> Iterator[None]:
    """A context that cancels the calls which a pool has not begun if its body ends with an error."""
    try:
        yield
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _shared_names(dataset: Dataset) -> frozenset[str]:
    """Keys, in lower case, that differ from another key only in case. A function of the whole dataset, not of the
    selected clips."""
    lower = pc.utf8_lower(dataset.clips.key.array)
    if pc.count_distinct(lower).as_py() == len(lower):
        return frozenset()
    return frozenset(key for key, number in Counter(lower.to_pylist()).items() if number > 1)


def _documents(dataset: Dataset, rows: Sequence[int]) -> list[bytes]:
    """The JSON files of clips."""
    columns = dataset.columns
    named = {"key": "key", "source": "source", "label": "label"} | ({"class": "class"} if dataset.classes else {})
    found: dict[str, list[Any]] = {name: columns.get(name).take(pa.array(rows)).to_pylist() for name in named}
    usable = [name for name in columns.meta.names if name not in columns.meta.errors and name not in named]
    found |= {name: columns.meta_column(name).take(pa.array(rows)).to_pylist() for name in usable}
    lines = (dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True))
    return [
        (dump_json({name: json_value(value) for name, value in line.items() if value is not None}) + "\n").encode()
        for line in lines
    ]


def _write(
    dataset: Dataset, folder: Path, shared: frozenset[str], row: int, document: bytes, *, overwrite: bool
) -> int | ClipError | None:
    """Write a clip's files, the MP4 or the image last.

    Returns:
        the size of the MP4 or image; None if both files existed; or what is wrong with the clip.
    """
    key = dataset.key(row)
    name = longer_keys(key)[0] if key.lower() in shared else key
    clip = ClipFile(dataset, row)
    image = EXTENSIONS.get(dataset.clips.codec[row])
    files: dict[Path, Iterable[memoryview | bytes]] = {
        folder / f"{name}.json": [document],
        folder / f"{name}.{image or 'mp4'}": (),
    }
    written = 0
    try:
        for path, content in files.items():
            data = content or (clip.packets() if image else clip.read())
            if not overwrite and os.path.lexists(path):
                if not _holds(path, data):
                    raise InputError(f"{path} holds something else: give another folder, or replace it (--overwrite)")
                continue
            _create(path, data, overwrite=overwrite)
            written += 1
    except ClipError as error:
        return error
    size = int(dataset.index(row).size.sum()) if image else clip.size
    return size if written else None


def _holds(path: Path, content: Iterable[memoryview | bytes]) -> bool:
    """Whether a file has exactly this content."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return all(file.read(len(chunk)) == bytes(chunk) for chunk in content) and not file.read(1)


def _create(path: Path, content: Iterable[memoryview | bytes], *, overwrite: bool) -> None:
    """Write a file atomically."""
    with explained(path, "write"), written_beside(str(path), content) as temporary:
        if overwrite:
            os.replace(temporary, path)
            return
        try:
            name_new(temporary, str(path))
        except FileExistsError:
            raise InputError(f"{path} was written meanwhile by another process: run this again") from None
