"""Files wherever they are: fsspec behind a few typed functions, so that `s3://bucket/x` is only another path.

A path is a local path or any URL that fsspec knows. Credentials and endpoints come from the environment
(`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_ENDPOINT_URL`, `AWS_REGION`, or `FSSPEC_…`), never through
arguments. Packages such as s3fs are imported when the first URL that needs them is used.

Every failure that a user can cause comes out as one sentence: InputError where the path itself cannot be used,
StorageUnavailable (a DatasetError) where trying again may help, DatasetError for the rest.

Fork: a forked child gets an event loop and connections of its own from fsspec. Two things stay dangerous. Files from
`open_read` must not cross a fork: s3fs raises "This class is not fork-safe". And a process must not fork while another
of its threads makes its first remote call: fsspec's loop lock would be copied as held, and the child's first call would
hang. Fork first, or call any of these functions once before, or use spawn.
"""

from __future__ import annotations

import contextlib
import errno
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
from streamvid.storage.explain import StorageUnavailable, explained, status_of, true_cause
from streamvid.storage.url import AnyPath, is_local, join, local_path, redact

__all__ = [
    "AnyPath",
    "Details",
    "StorageUnavailable",
    "create_bytes",
    "details",
    "exists",
    "get_file",
    "glob",
    "is_local",
    "join",
    "list_details",
    "list_files",
    "move_file",
    "open_read",
    "put_file",
    "read_bytes",
    "read_ranges",
    "redact",
    "remove_file",
    "size",
    "write_bytes",
]

# s3fs's own blocks are 50 MiB and ten of them are held in memory at once for every file being fetched; 8 MiB ranges
# are as fast. Its listings are remembered for good unless told otherwise.
_S3_OPTIONS = {"default_block_size": 8 * 2**20, "use_listings_cache": False}
_OPTIONS: dict[str, dict[str, Any]] = {"s3": _S3_OPTIONS, "s3a": _S3_OPTIONS}

# Remote file systems in use, kept from the garbage collector of forked children. fsspec drops its own references
# there; s3fs then closes the inherited connections, which takes them out of the epoll set that child and parent
# share: the parent's next request would wait 15 s for an answer that it cannot see.
_kept: dict[int, Any] = {}


def read_bytes(path: AnyPath) -> bytes:
    """The whole file. Raises DatasetError or InputError."""
    with explained(path, "read"):
        fs, name = _locate(path)
        return cast(bytes, fs.cat_file(name))


def read_ranges(ranges: Sequence[tuple[AnyPath, int, int]]) -> list[bytes]:
    """Bytes [start, end) of files, asked for side by side where the storage can; shorter where a file ends before.

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


def open_read(path: AnyPath) -> BinaryIO:
    """The file opened for reading and seeking; close it after use.

    Raises DatasetError or InputError. What fails later, while reading from it, is the file system's own exception.
    """
    with explained(path, "read"):
        fs, name = _locate(path)
        return cast(BinaryIO, fs.open(name, "rb"))


def size(path: AnyPath) -> int:
    """The file's size in bytes. Raises InputError, or DatasetError, also for a folder or where nobody tells."""
    with explained(path, "read"):
        info = _info(path)
        if info.get("type") == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not isinstance(info.get("size"), int):
            raise DatasetError(f"Cannot tell the size of {redact(path)}: its server does not say it.")
        return cast(int, info["size"])


def exists(path: AnyPath) -> bool:
    """Whether there is a file or folder. False only if it is known to be missing: other failures raise as elsewhere."""
    with explained(path, "read"):
        try:
            _info(path)
        except FileNotFoundError as exc:
            # fsspec's HTTP says "not found" for any failure; the reason is then in the cause.
            if true_cause(exc) is not exc:
                raise
            return False
        return True


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
    """What a storage tells of a file without its being opened.

    Attributes:
        size: bytes; 0 where nobody tells, and for folders.
        mark: changes whenever the content does: an etag, a checksum or a time of writing.
        is_folder: it is a folder.
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
    """The details of all that lies directly in a folder, by name; nothing if there is no such folder."""
    with explained(folder, "list"):
        fs, name = _locate(folder)
        fs.invalidate_cache()
        try:
            found = fs.ls(name, detail=True)
        except FileNotFoundError:
            return {}
        # Object stores may list the folder itself among what is in it.
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
    """Write a file whole or not at all, making missing folders. A file that is there is replaced.

    Local: a temporary file beside it, synced, then renamed. Elsewhere: one put. Raises DatasetError or InputError.
    """
    with explained(path, "write"):
        fs, name = _locate(path)
        if is_local(path):
            with _replacing(name) as file:
                file.write(data)
        else:
            fs.pipe_file(name, data)
            fs.invalidate_cache()


def create_bytes(path: AnyPath, data: bytes) -> bool:
    """Write a small file unless it is there: of several writers at once one succeeds. Returns whether this one did.

    S3: one put with ``If-None-Match: *``. Raises DatasetError or InputError.
    """
    with explained(path, "write"):
        fs, name = _locate(path)
        try:
            if is_local(path):
                _create(name, data)
            else:
                fs.pipe_file(name, data, mode="create")
                fs.invalidate_cache()
        except FileExistsError:
            return False
        except OSError as exc:
            if status_of(exc) not in (409, 412):  # another was first, or is about to be
                raise
            return False
        return True


def _create(name: str, data: bytes) -> None:
    """A local file, whole from the moment that it is there. Raises FileExistsError."""
    folder = os.path.dirname(name)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f".{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, name)
        except OSError as exc:
            if exc.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK) or os.path.exists(name):
                raise
            os.replace(temporary, name)  # a file system without links: as good as it gets
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def put_file(local: AnyPath, path: AnyPath) -> None:
    """Copy a local file to `path`, whole or not at all, as `write_bytes` does but without holding it in memory."""
    with contextlib.ExitStack() as stack:
        with explained(local, "read"):
            source = stack.enter_context(open(local, "rb"))
        stack.enter_context(explained(path, "write"))
        fs, name = _locate(path)
        if is_local(path):
            with _replacing(name) as file:
                shutil.copyfileobj(source, file, 2**20)
        else:
            fs.put_file(os.fspath(local), name)
            fs.invalidate_cache()


def get_file(path: AnyPath, local: AnyPath) -> None:
    """Copy `path` into the local file `local`, in ranges side by side where the storage can.

    `local` is written in place and may be left in part after an error. Raises DatasetError or InputError.
    """
    with explained(path, "read"):
        fs, name = _locate(path)
        fs.get_file(name, os.fspath(local))


def move_file(local: Path, path: str) -> None:
    """Move a finished local file to `path`, whole or not at all. A file that is there is replaced.

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
    """fsspec's file system and the name in it. Local names with `::` or the like are no URLs and stay as they are."""
    text = os.fspath(path)
    if not text:
        raise InputError("An empty path was given; name a file or folder.")
    if is_local(text):
        fs = fsspec.filesystem("file")
        return fs, fs._strip_protocol(text)
    fs, name = url_to_fs(text, **_OPTIONS.get(get_protocol(text), {}))
    _kept[id(fs)] = fs
    return fs, name


def _info(path: AnyPath) -> dict[str, Any]:
    fs, name = _locate(path)
    fs.invalidate_cache()
    return cast(dict[str, Any], fs.info(name))


def _details(info: Mapping[str, Any]) -> Details:
    size = info.get("size")
    # Every kind of storage has its own name for what tells one content from another.
    marks = (info.get(name) for name in ("ETag", "etag", "md5Hash", "checksum", "mtime", "LastModified", "created"))
    mark = next((str(mark) for mark in marks if mark is not None), "")
    return Details(size if isinstance(size, int) else 0, mark, info.get("type") == "directory")


def _full(fs: Any, path: AnyPath, name: str) -> str:
    return name if is_local(path) else cast(str, fs.unstrip_protocol(name))


@contextlib.contextmanager
def _replacing(name: str) -> Iterator[BinaryIO]:
    """A temporary file beside `name` that takes its place if all goes well, and vanishes if not."""
    folder = os.path.dirname(name)
    os.makedirs(folder, exist_ok=True)
    # Not tempfile: its files are readable by their owner alone, and a dataset is to be read by others.
    temporary = os.path.join(folder, f".{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
