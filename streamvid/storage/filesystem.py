"""Files by path or URL: typed functions over fsspec, the same for local files and for `s3://bucket/x`.

A path is a local path or any URL that fsspec knows. Credentials and endpoints come from the environment
(`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_ENDPOINT_URL`, `AWS_REGION`, or `FSSPEC_…`), never through
arguments. Packages such as s3fs are imported when the first URL that needs them is used.

Failures that a user can cause raise errors of one sentence: InputError where the path itself cannot be used,
StorageUnavailable (a DatasetError) where trying again may help, DatasetError otherwise.

Fork: fsspec gives a forked child an event loop and connections of its own. But a process must not fork while another of
its threads makes its first remote call: the child would inherit fsspec's loop lock as held, and its first call would
hang. Fork first, or call one of these functions before, or use spawn.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import fsspec
from fsspec.core import url_to_fs
from fsspec.utils import get_protocol

from streamvid.errors import DatasetError, InputError
from streamvid.storage.explain import explained, status_of, true_cause
from streamvid.storage.url import AnyPath, is_local, local_path, redact

# By default s3fs reads blocks of 50 MiB and holds ten of them in memory for every file being fetched; 8 MiB are as
# fast. Its cache of listings never expires.
_S3_OPTIONS = {"default_block_size": 8 * 2**20, "use_listings_cache": False}
_OPTIONS: dict[str, dict[str, Any]] = {"s3": _S3_OPTIONS, "s3a": _S3_OPTIONS}

# References that keep remote file systems alive in forked children. fsspec drops its own there; s3fs then closes the
# inherited connections, which removes them from the epoll set that child and parent share, and the parent's next
# request waits 15 s for an answer that it cannot see.
_kept: dict[int, Any] = {}


def read_bytes(path: AnyPath) -> bytes:
    """The whole file. Raises DatasetError or InputError."""
    with explained(path, "read"):
        fs, name = _locate(path)
        return cast(bytes, fs.cat_file(name))


def read_ranges(ranges: Sequence[tuple[AnyPath, int, int]]) -> list[bytes]:
    """Bytes [start, end) of files, requested concurrently where the storage supports it; shorter where a file ends.

    Args:
        ranges: path, start and end of each.

    Raises DatasetError or InputError, which names the first file that cannot be read.
    """
    found: dict[int, Any] = {}
    by_storage: dict[int, tuple[Any, list[int], list[str]]] = {}
    for number, (path, _, _) in enumerate(ranges):
        with explained(path, "read"):
            fs, name = _locate(path)
        _, numbers, names = by_storage.setdefault(id(fs), (fs, [], []))
        numbers.append(number)
        names.append(name)
    for fs, numbers, names in by_storage.values():
        with explained(ranges[numbers[0]][0], "read"):
            starts, ends = [ranges[n][1] for n in numbers], [ranges[n][2] for n in numbers]
            blocks = fs.cat_ranges(names, starts, ends, on_error="return")
        found.update(zip(numbers, blocks, strict=True))
    for number, (path, _, _) in enumerate(ranges):
        if isinstance(found[number], BaseException):
            with explained(path, "read"):
                raise found[number]
    return [bytes(found[number]) for number in range(len(ranges))]


def size(path: AnyPath) -> int:
    """The file's size in bytes. Raises InputError or DatasetError, also if it is a folder or has no known size."""
    with explained(path, "read"):
        info = _info(path)
        if info.get("type") == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not isinstance(info.get("size"), int):
            raise DatasetError(f"Cannot tell the size of {redact(path)}: its server does not give it.")
        return cast(int, info["size"])


def exists(path: AnyPath) -> bool:
    """Whether there is a file or folder. Raises DatasetError or InputError if the storage cannot tell."""
    return details(path) is not None


def list_files(path: AnyPath, *, recursive: bool = False) -> list[str]:
    """Full paths of the files in a folder or under a prefix, sorted; of a file: itself. Folders are left out.

    Raises DatasetError if there is no such folder, or InputError.
    """
    with explained(path, "list"):
        fs, name = _locate(path)
        fs.invalidate_cache()
        found = fs.find(name, maxdepth=None if recursive else 1)
        if not found:
            fs.info(name)  # an empty folder is fine, a missing one is not
        return sorted(_full(fs, path, item) for item in found)


@dataclass(frozen=True)
class Details:
    """Metadata of a file, from its storage.

    Attributes:
        size: in bytes; 0 for folders, and if the storage does not say.
        mark: an etag, checksum or modification time: different whenever the content is.
        is_folder: whether it is a folder.
    """

    size: int
    mark: str
    is_folder: bool


def details(path: AnyPath) -> Details | None:
    """The details of a file or folder, None if there is none. Raises DatasetError or InputError."""
    with explained(path, "read"):
        try:
            return _details(_info(path))
        except FileNotFoundError as exc:
            if true_cause(exc) is not exc:
                raise
            return None


def list_details(folder: AnyPath) -> dict[str, Details]:
    """The details of a folder's entries, by name; empty if there is no such folder."""
    with explained(folder, "list"):
        fs, name = _locate(folder)
        fs.invalidate_cache()
        try:
            found = fs.ls(name, detail=True)
        except FileNotFoundError:
            return {}
        # Object stores may list the folder itself among its entries.
        inside = [info for info in found if info["name"].rstrip("/") != name.rstrip("/")]
        return {info["name"].rstrip("/").rpartition("/")[2]: _details(info) for info in inside}


def glob(pattern: AnyPath) -> list[str]:
    """Full paths of the files that match a pattern of `*`, `**`, `?` and `[…]`, sorted; empty if none does."""
    with explained(pattern, "list"):
        fs, name = _locate(pattern)
        fs.invalidate_cache()
        found: dict[str, dict[str, Any]] = fs.glob(name, detail=True)
        return sorted(_full(fs, pattern, item) for item, info in found.items() if info.get("type") == "file")


def write_bytes(path: AnyPath, data: bytes) -> None:
    """Write a file atomically, making missing folders. An existing file is replaced.

    Local: a temporary file beside it, synced, then renamed. Elsewhere: one put. Raises DatasetError or InputError.
    """
    with explained(path, "write"):
        fs, name = _locate(path)
        if is_local(path):
            with _temporary(name, io.BytesIO(data)) as temporary:
                os.replace(temporary, name)
        else:
            fs.pipe_file(name, data)
            fs.invalidate_cache()


def create_bytes(path: AnyPath, data: bytes) -> bool:
    """Write a small file unless it exists. Of several concurrent writers one succeeds; returns whether this one did.

    S3: one put with ``If-None-Match: *``. Raises DatasetError or InputError.
    """
    with explained(path, "write"):
        fs, name = _locate(path)
        try:
            if is_local(path):
                with _temporary(name, io.BytesIO(data)) as temporary:
                    _link(temporary, name)
            else:
                fs.pipe_file(name, data, mode="create")
                fs.invalidate_cache()
        except OSError as exc:
            # 409 and 412: another writer was first, or is writing.
            if not isinstance(exc, FileExistsError) and status_of(exc) not in (409, 412):
                raise
            return False
        return True


def _link(temporary: str, name: str) -> None:
    """Give a file a name that does not exist yet. Raises FileExistsError."""
    try:
        os.link(temporary, name)
    except OSError as exc:
        if exc.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK) or os.path.exists(name):
            raise
        os.replace(temporary, name)  # no hard links here, so no atomic way


def put_file(local: AnyPath, path: AnyPath) -> None:
    """Copy a local file to `path` atomically, as `write_bytes` but without holding it in memory."""
    with contextlib.ExitStack() as stack:
        with explained(local, "read"):
            source = stack.enter_context(open(local, "rb"))
        stack.enter_context(explained(path, "write"))
        fs, name = _locate(path)
        if is_local(path):
            with _temporary(name, source) as temporary:
                os.replace(temporary, name)
        else:
            fs.put_file(os.fspath(local), name)
            fs.invalidate_cache()


def get_file(path: AnyPath, local: AnyPath) -> None:
    """Copy `path` into the local file `local`, in concurrent ranges where the storage supports it.

    `local` is written in place and may be left in part after an error. Raises DatasetError or InputError.
    """
    with explained(path, "read"):
        fs, name = _locate(path)
        fs.get_file(name, os.fspath(local))


def move_file(local: Path, path: str) -> None:
    """Move a finished local file to `path` atomically. An existing file is replaced.

    Args:
        local: on the same file system as `path`, if that is local, so that nothing is copied.

    Raises:
        StreamvidError: `path` cannot be written to.
    """
    if not is_local(path):
        put_file(local, path)
        local.unlink()
        return
    target = local_path(path)
    try:
        with local.open("rb") as file:
            os.fsync(file.fileno())
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.replace(local, target)
    except OSError as error:
        raise DatasetError(f"cannot write {target}: {error.strerror}; make room or choose another place") from error


def remove_file(path: str) -> None:
    """Remove a file if it exists.

    Raises:
        DatasetError: it exists and cannot be removed.
    """
    try:
        if is_local(path):
            Path(local_path(path)).unlink(missing_ok=True)
        elif exists(path):
            remote, name = url_to_fs(path)
            remote.rm_file(name)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DatasetError(f"cannot remove {redact(path)}: {reason}; allow it or choose another place") from error


def _locate(path: AnyPath) -> tuple[Any, str]:
    """fsspec's file system and the name in it. A local name with `::` is not taken for a chained URL."""
    text = os.fspath(path)
    if not text:
        raise InputError("An empty path was given; name a file or folder.")
    if is_local(text):
        return fsspec.filesystem("file"), local_path(text)
    fs, name = url_to_fs(text, **_OPTIONS.get(get_protocol(text), {}))
    _kept[id(fs)] = fs
    return fs, name


def _info(path: AnyPath) -> dict[str, Any]:
    fs, name = _locate(path)
    fs.invalidate_cache()
    return cast(dict[str, Any], fs.info(name))


def _details(info: Mapping[str, Any]) -> Details:
    size = info.get("size")
    # Each storage has its own name for it.
    marks = (info.get(name) for name in ("ETag", "etag", "md5Hash", "checksum", "mtime", "LastModified", "created"))
    mark = next((str(mark) for mark in marks if mark is not None), "")
    return Details(size if isinstance(size, int) else 0, mark, info.get("type") == "directory")


def _full(fs: Any, path: AnyPath, name: str) -> str:
    return name if is_local(path) else cast(str, fs.unstrip_protocol(name))


@contextlib.contextmanager
def _temporary(name: str, source: BinaryIO) -> Iterator[str]:
    """A synced copy of `source` in the folder of `name`, removed at the end of the block if it is still there."""
    folder = os.path.dirname(name)
    os.makedirs(folder, exist_ok=True)
    # Not the module tempfile, whose files only their owner can read.
    temporary = os.path.join(folder, f".{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            shutil.copyfileobj(source, file, 2**20)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
