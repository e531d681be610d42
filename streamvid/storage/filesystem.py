"""Files by path or URL: typed functions over fsspec, the same for local files and for `s3://bucket/x`.

Functions that read during a run take a `Retry`, which says for how long requests are repeated while a storage does not
answer. Without one, the client makes its own few attempts, and one with credentials looked up again.

A path is a local path or any URL that fsspec knows. Credentials and endpoints come from the environment
(`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_ENDPOINT_URL`, `AWS_REGION`, or `FSSPEC_…`), never through
arguments. Packages such as s3fs are imported when the first URL that needs them is used.

Failures that a user can cause raise errors of one sentence: InputError if the path itself cannot be used,
StorageUnavailable (a DatasetError) if a repetition may succeed, DatasetError otherwise.

Fork: fsspec gives a forked child an event loop and connections of its own. But a process must not fork while another of
its threads makes its first remote call: the child would inherit fsspec's loop lock as held, and its first call would
hang. Fork first, or call one of these functions before, or use spawn.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, cast

from fsspec.asyn import sync
from fsspec.utils import get_protocol

from streamvid.errors import DatasetError
from streamvid.storage.client import asked, has_ranges, in_s3, is_s3, locate, renewing
from streamvid.storage.explain import StorageUnavailable, explained, status_of, true_cause
from streamvid.storage.http_ranges import size_and_mark
from streamvid.storage.link import Link
from streamvid.storage.listing import listed
from streamvid.storage.local_writes import name_new, written_beside
from streamvid.storage.part import PACE_BYTES
from streamvid.storage.ranges import RemoteRanges, mark_of_info
from streamvid.storage.regular_file import MAX_BYTES, read_file
from streamvid.storage.retry import Retry
from streamvid.storage.s3_ranges import S3Ranges
from streamvid.storage.upload import Upload
from streamvid.storage.url import AnyPath, is_local, local_path, redact
from streamvid.storage.web_copy import WebCopy


def read_bytes(path: AnyPath, *, most: int = MAX_BYTES, retry: Retry | None = None, link: Link | None = None) -> bytes:
    """Read a whole file. Raises InputError or DatasetError (MissingFile if it does not exist), also if a local path is
    no regular file, or the file has more than `most` bytes (for a remote one, only with a `retry`). A `link` measures
    the requests."""
    if retry is not None and in_s3(path):
        return RemoteRanges(link).read_object(path, most=most, retry=retry)
    if retry is not None and not is_local(path):
        length = size_now(path, retry=retry)[0] or 0  # many web servers give none, as they compress text
        if length > most:
            raise DatasetError(f"Cannot read {redact(path)}: it has {length} bytes, where {most} are the most.")
        found = bytearray()

        def write(block: bytes, start: int) -> None:
            if start + len(block) > most:
                raise DatasetError(f"Cannot read {redact(path)}: it has more than {most} bytes, which are the most.")
            found[start:] = block

        fetch(path, write, length=length, mark="", retry=retry, link=link or Link())
        return bytes(found)

    def read() -> bytes:
        fs, name = locate(path)
        return read_file(name, most) if is_local(path) else _content(fs, name)

    return asked(path, read, retry)


def size(path: AnyPath, *, retry: Retry | None = None) -> int:
    """The file's size in bytes. Raises InputError or DatasetError, also if it is a folder or has no known size."""
    found = size_now(path, retry=retry)[0]
    if found is None:
        raise DatasetError(f"Cannot tell the size of {redact(path)}: its server does not give it.")
    return found


def size_now(path: AnyPath, *, retry: Retry | None = None) -> tuple[int | None, str]:
    """The file's size, None if its server does not give it, and its version mark as in `Details`. Errors as in `size`
    otherwise."""

    def ask() -> tuple[int | None, str]:
        info = _info(path, patient=retry is not None)
        if info.get("type") == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        found = info.get("size")
        return found if isinstance(found, int) else None, mark_of_info(info)

    return asked(path, ask, retry)


def exists(path: AnyPath, *, retry: Retry | None = None) -> bool:
    """Whether a file or folder exists. Raises DatasetError or InputError if the storage cannot tell."""
    return details(path, retry=retry) is not None


@renewing("list")
def list_files(path: AnyPath, *, recursive: bool = False) -> list[str]:
    """Full paths of the files in a folder or under a prefix, sorted, without folders. For a file, its own path.

    Raises DatasetError if there is no such folder, or InputError.
    """
    fs, name = locate(path)
    fs.invalidate_cache()
    try:
        found = listed(fs, "find", name, maxdepth=None if recursive else 1)
    except PermissionError:
        if not is_s3(fs):
            raise
        found = []  # s3fs asks by HEAD whether a name without files below it is a file
    # An empty folder is fine, a missing one is not.
    if not found and _info(path)["type"] == "file":
        found = [name]
    return sorted(_full(fs, path, item) for item in found)


@dataclass(frozen=True)
class Details:
    """Metadata of a file, from its storage.

    Attributes:
        size: size in bytes; 0 for folders, and if the storage does not give it.
        mark: an ETag, checksum or modification time, which changes whenever the content does.
        is_folder: whether it is a folder.
    """

    size: int
    mark: str
    is_folder: bool


def details(path: AnyPath, *, retry: Retry | None = None, hosts: Collection[str] | None = None) -> Details | None:
    """The details of a file or folder, None if it does not exist. Raises DatasetError or InputError.

    Args:
        retry: for how long requests are repeated while the storage does not answer.
        hosts: for a file on a web server: follow redirects only to its own host and to these, and raise an error if the
            server gives no version of the file.
    """

    def ask() -> Details | None:
        if hosts is not None and not has_ranges(path):
            return Details(*size_and_mark(os.fspath(path), hosts), False)
        try:
            return _details(_info(path, patient=retry is not None))
        except FileNotFoundError as exc:
            if true_cause(exc) is not exc:
                raise
            return None

    return asked(path, ask, retry)


@renewing("list")
def list_details(folder: AnyPath) -> dict[str, Details]:
    """The details of a folder's entries, by name; empty if there is no such folder."""
    fs, name = locate(folder)
    fs.invalidate_cache()
    try:
        found = fs.ls(name, detail=True)
    except FileNotFoundError:
        return {}
    # Object stores may list the folder itself among its entries.
    inside = [info for info in found if info["name"].rstrip("/") != name.rstrip("/")]
    return {info["name"].rstrip("/").rpartition("/")[2]: _details(info) for info in inside}


@renewing("list")
def glob(pattern: AnyPath) -> list[str]:
    """Full paths of the files that match a pattern of `*`, `**`, `?` and `[…]`, sorted; empty if there are none."""
    fs, name = locate(pattern)
    fs.invalidate_cache()
    found: dict[str, dict[str, Any]] = listed(fs, "glob", name, detail=True)
    return sorted(_full(fs, pattern, item) for item, info in found.items() if info.get("type") == "file")


def write_bytes(path: AnyPath, data: bytes) -> None:
    """Write a file atomically, making missing folders. An existing file is replaced.

    Local: a temporary file beside it, synced, then renamed. Elsewhere: one put; S3 confirms what it holds. Raises
    DatasetError or InputError.
    """
    if in_s3(path):
        with contextlib.closing(Upload(path)) as upload:
            upload.write(data)
            upload.finish()
        return
    with explained(path, "write"):
        fs, name = locate(path)
        if is_local(path):
            with written_beside(name, [data]) as temporary:
                os.replace(temporary, name)
        else:
            fs.pipe_file(name, data)
            fs.invalidate_cache()


@renewing("write")
def create_bytes(path: AnyPath, data: bytes) -> bool:
    """Write a small file unless it exists. Returns whether this call did; of several concurrent writers, one succeeds.

    S3: one put with ``If-None-Match: *``, and a HEAD before, as some servers ignore or refuse that; there, several
    writers in one moment may succeed. Raises DatasetError or InputError.
    """
    fs, name = locate(path)
    if is_s3(fs) and exists(path):
        return False
    try:
        if is_local(path):
            with written_beside(name, [data]) as temporary:
                name_new(temporary, name)
        elif is_s3(fs):
            _put_if(fs, name, data, [{"IfNoneMatch": "*"}])
        else:
            fs.pipe_file(name, data, mode="create")
        fs.invalidate_cache()
    except OSError as exc:
        # 409 and 412: another writer was first, or is writing.
        if not isinstance(exc, FileExistsError) and status_of(exc) not in (409, 412):
            raise
        return False
    return True


@renewing("write")
def replace_bytes(path: AnyPath, data: bytes, *, expected: bytes) -> bool:
    """Replace a small file if its content is still `expected`. Returns whether it was replaced.

    S3: one put with ``If-Match``, so that of several concurrent writers one succeeds. In other storages, and if a
    server does not support the condition, the content is compared just before it is replaced; a local writer holds a
    lock (`streamvid.storage.folder_lock`) meanwhile. Raises DatasetError or InputError.
    """
    fs, name = locate(path)
    if is_local(path):
        with written_beside(name, [data]) as temporary:
            if read_file(name, MAX_BYTES) != expected:
                return False
            os.replace(temporary, name)
        return True
    etag = str(_info(path).get("ETag", "")) if is_s3(fs) else ""
    if _content(fs, name) != expected:
        return False
    try:  # Ceph compares the ETag without quotes
        _put_if(fs, name, data, [{"IfMatch": written} for written in dict.fromkeys((etag, etag.strip('"'))) if etag])
    except OSError as exc:
        # 409 and 412: another writer was first, or is writing; 404: one has removed it.
        if not isinstance(exc, FileNotFoundError) and status_of(exc) not in (404, 409, 412):
            raise
        return False
    fs.invalidate_cache()
    return True


def _put_if(fs: Any, name: str, data: bytes, conditions: Sequence[Mapping[str, str]]) -> None:
    """One put, on the first of these conditions that holds; unconditional if client or server does not support any."""
    for condition in conditions:
        try:
            fs.pipe_file(name, data, chunksize=len(data) + 1, **condition)
            return
        except Exception as exc:
            if type(exc).__name__ == "ParamValidationError" or status_of(exc) == 501:
                break
            if status_of(exc) != 412 or condition is conditions[-1]:
                raise
    fs.pipe_file(name, data)


@renewing("write", at=1)
def put_file(local: AnyPath, path: AnyPath) -> None:
    """Copy a local file to a remote `path`, as `write_bytes` but without holding it in memory."""
    fs, name = locate(path)
    fs.put_file(os.fspath(local), name)
    fs.invalidate_cache()


@renewing("read")
def get_file(path: AnyPath, local: AnyPath) -> None:
    """Copy `path` into the local file `local`, which may be incomplete after an error. Raises DatasetError or
    InputError."""
    fs, name = locate(path)
    fs.get_file(name, os.fspath(local))


def fetch(
    path: AnyPath, write: Callable[[bytes, int], object], *, length: int, mark: str, retry: Retry, link: Link
) -> int:
    """Hand a whole remote file to `write`, as blocks of bytes with their offsets; returns the number of its bytes.

    What broke off goes on where it was: buckets are read in concurrent ranges, a web server by one request for all that
    is left, and from the beginning again if it knows no ranges.

    Args:
        length: size of the file in bytes; 0 if a web server does not give it. Other lengths count as network errors.
        mark: ETag that an object in S3 must have; "" for any.
        retry: for how long requests are repeated without any progress, of a web server without `PACE_BYTES`.
        link: measures the requests.

    Raises InputError or DatasetError, and errors of `write`.
    """
    if has_ranges(path):
        RemoteRanges(link, {path: mark} if mark else None).copy(path, length, write, retry=retry)
        return length
    with explained(path, "read"):
        fs, name = locate(path, patient=True)
    copy = WebCopy(fs, name, write, length)
    link.count(1, length)
    while True:
        before = copy.done
        try:
            asked(path, lambda: sync(fs.loop, copy.attempt), retry)
            return copy.done
        except StorageUnavailable:
            if not retry.seconds or copy.done < before + PACE_BYTES:
                raise


def move_file(local: Path, path: str) -> None:
    """Move a finished local file to `path` atomically. An existing file is replaced.

    Args:
        local: a local file; if `path` is local, on the same file system, so that nothing is copied.

    Raises:
        StreamvidError: `path` cannot be written to.
    """
    if not is_local(path):
        put_file(local, path)
        local.unlink()
        return
    target = local_path(path)
    with explained(path, "write"):
        with local.open("rb") as file:
            os.fsync(file.fileno())
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.replace(local, target)


@renewing("remove")
def remove_file(path: str) -> None:
    """Remove a file if it exists. Raises DatasetError or InputError."""
    if is_local(path):
        Path(local_path(path)).unlink(missing_ok=True)
    elif exists(path):
        fs, name = locate(path)
        fs.rm_file(name)


def _content(fs: Any, name: str) -> bytes:
    # Versions of s3fs that read large files by several requests ask for the size of each before, by HEAD.
    one_request = is_s3(fs) and "max_concurrency" in signature(fs._cat_file).parameters
    return cast(bytes, fs.cat_file(name, max_concurrency=1) if one_request else fs.cat_file(name))


def _info(path: AnyPath, *, patient: bool = False) -> dict[str, Any]:
    fs, name = locate(path, patient=patient)
    fs.invalidate_cache()
    if patient and fs.async_impl:  # a second attempt if the first is stuck
        return cast(dict[str, Any], sync(fs.loop, Link().fetch, 0, lambda: _asked_info(fs, name)))
    return cast(dict[str, Any], sync(fs.loop, _asked_info, fs, name) if is_s3(fs) else fs.info(name))


async def _asked_info(fs: Any, name: str) -> dict[str, Any]:
    """fsspec's info. Where S3 refuses HEAD, as proxies do that only let GET through, it comes with the first byte."""
    try:
        return cast(dict[str, Any], await fs._info(name))
    except PermissionError:
        if not is_s3(fs) or not fs.split_path(name)[1]:
            raise
    try:
        part = await S3Ranges().read(fs, name, 0, 1, "", Link())
    except Exception as error:
        if status_of(error) != 404:
            raise
        await fs._ls(name)  # of a folder; an error if there is none
        return {"type": "directory"}
    return {"type": "file", "size": part.size if part.data else 0, "ETag": part.mark}


def _details(info: Mapping[str, Any]) -> Details:
    size = info.get("size")
    return Details(size if isinstance(size, int) else 0, mark_of_info(info), info.get("type") == "directory")


def _full(fs: Any, path: AnyPath, name: str) -> str:
    """The full path of a file in fsspec's listing, with the scheme of the listed path, since several schemes may mean
    the same storage."""
    if is_local(path):
        return name
    scheme, _, rest = cast(str, fs.unstrip_protocol(name)).partition("://")
    given = get_protocol(os.fspath(path))
    same = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    return f"{given if given in same else scheme}://{rest}"
