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
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

import fsspec
from fsspec.core import url_to_fs
from fsspec.utils import get_protocol

from streamvid.errors import DatasetError, InputError, StreamvidError

AnyPath = str | os.PathLike[str]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:(//|:)")

# s3fs's own blocks are 50 MiB and ten of them are held in memory at once for every file being fetched; 8 MiB ranges
# are as fast. Its listings are remembered for good unless told otherwise.
_S3_OPTIONS = {"default_block_size": 8 * 2**20, "use_listings_cache": False}
_OPTIONS: dict[str, dict[str, Any]] = {"s3": _S3_OPTIONS, "s3a": _S3_OPTIONS}

# Remote file systems in use, kept from the garbage collector of forked children. fsspec drops its own references
# there; s3fs then closes the inherited connections, which takes them out of the epoll set that child and parent
# share: the parent's next request would wait 15 s for an answer that it cannot see.
_kept: dict[int, Any] = {}

_USERINFO = re.compile(r"(://)[^/\s@]*(?:@[^/\s@]*)*@")
_SECRET_PART = re.compile(
    r"([?&;,\s][^=&;,\s]*(?:key|secret|token|sig|signature|credential|passw|auth)[^=&;,\s]*=)[^&;,\s#]*", re.IGNORECASE
)
_SECRET_VARIABLES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")

_REFUSED_CREDENTIALS = {
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "RequestTimeTooSkewed",
}
# By name, as the packages that define them are imported only when used.
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"}
_BROKEN_CONNECTION = {
    "ConnectionError",
    "TimeoutError",
    "HTTPClientError",
    "ClientConnectionError",
    "ClientPayloadError",
    "IncompleteRead",
    "IncompleteReadError",
    "ResponseParserError",
}
_BROKEN_ERRNOS = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.EREMOTEIO,
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
    errno.ESTALE,
    errno.ETIMEDOUT,
}


class StorageUnavailable(DatasetError):  # noqa: N818
    """The storage did not answer, broke the connection or was overloaded: trying again may help."""


def redact(url: AnyPath) -> str:
    """A URL, or a text with URLs, fit for a message: user names, passwords and secret query parts become `***`."""
    text = _USERINFO.sub(r"\1***@", os.fspath(url))
    return _SECRET_PART.sub(r"\1***", text)


def is_local(path: AnyPath) -> bool:
    """Whether the path is on a local (or mounted) file system: no URL, or one of `file://`."""
    text = os.fspath(path)
    if not (_URL.match(text) and "://" in text):
        return True
    return get_protocol(text) in ("file", "local")


def join(base: AnyPath, *parts: str) -> str:
    """`base` with `parts` below it, separated by single slashes. The parts are taken as they are: check them first."""
    joined = os.fspath(base)
    for part in parts:
        joined = joined + part if joined.endswith("/") else f"{joined}/{part}"
    return joined


def read_bytes(path: AnyPath) -> bytes:
    """The whole file. Raises DatasetError or InputError."""
    with _explained(path, "read"):
        fs, name = _locate(path)
        return cast(bytes, fs.cat_file(name))


def open_read(path: AnyPath) -> BinaryIO:
    """The file opened for reading and seeking; close it after use.

    Raises DatasetError or InputError. What fails later, while reading from it, is the file system's own exception.
    """
    with _explained(path, "read"):
        fs, name = _locate(path)
        return cast(BinaryIO, fs.open(name, "rb"))


def size(path: AnyPath) -> int:
    """The file's size in bytes. Raises InputError, or DatasetError, also for a folder or where nobody tells."""
    with _explained(path, "read"):
        info = _info(path)
        if info.get("type") == "directory":
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not isinstance(info.get("size"), int):
            raise DatasetError(f"Cannot tell the size of {redact(path)}: its server does not say it.")
        return cast(int, info["size"])


def exists(path: AnyPath) -> bool:
    """Whether there is a file or folder. False only if it is known to be missing: other failures raise as elsewhere."""
    with _explained(path, "read"):
        try:
            _info(path)
        except FileNotFoundError as exc:
            # fsspec's HTTP says "not found" for any failure; the reason is then in the cause.
            if _root(exc) is not exc:
                raise
            return False
        return True


def list_files(path: AnyPath, *, recursive: bool = False) -> list[str]:
    """Full paths of the files in a folder or under a prefix, sorted; of a file: itself. Folders are left out.

    Raises DatasetError if there is no such folder, or InputError.
    """
    with _explained(path, "list"):
        fs, name = _locate(path)
        fs.invalidate_cache()
        found = fs.find(name, maxdepth=None if recursive else 1)
        if not found:
            fs.info(name)  # an empty folder is fine, a missing one is not
        return sorted(_full(fs, path, item) for item in found)


def glob(pattern: AnyPath) -> list[str]:
    """Full paths of the files that match a pattern of `*`, `**`, `?` and `[…]`, sorted; empty if none does."""
    with _explained(pattern, "list"):
        fs, name = _locate(pattern)
        fs.invalidate_cache()
        found: dict[str, dict[str, Any]] = fs.glob(name, detail=True)
        return sorted(_full(fs, pattern, item) for item, info in found.items() if info.get("type") == "file")


def write_bytes(path: AnyPath, data: bytes) -> None:
    """Write a file whole or not at all, making missing folders. A file that is there is replaced.

    Local: a temporary file beside it, synced, then renamed. Elsewhere: one put. Raises DatasetError or InputError.
    """
    with _explained(path, "write"):
        fs, name = _locate(path)
        if is_local(path):
            with _replacing(name) as file:
                file.write(data)
        else:
            fs.pipe_file(name, data)
            fs.invalidate_cache()


def put_file(local: AnyPath, path: AnyPath) -> None:
    """Copy a local file to `path`, whole or not at all, as `write_bytes` does but without holding it in memory."""
    with contextlib.ExitStack() as stack:
        with _explained(local, "read"):
            source = stack.enter_context(open(local, "rb"))
        stack.enter_context(_explained(path, "write"))
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
    with _explained(path, "read"):
        fs, name = _locate(path)
        fs.get_file(name, os.fspath(local))


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


@contextlib.contextmanager
def _explained(path: AnyPath, action: str) -> Iterator[None]:
    """Turn what the block raises into one sentence on `path`; defects of the code pass unchanged."""
    try:
        yield
    except StreamvidError:
        raise
    except Exception as exc:
        text = os.fspath(path)
        reason = _reason(_root(exc), text)
        if reason is None:
            raise
        kind, what = reason
        error = kind(f"Cannot {action} {redact(text)}: {what}.")
        # The original exception's text may hold the URL as it was given.
        raise error from (exc if redact(text) == text else None)


def _root(exc: BaseException) -> BaseException:
    """The exception that tells most: fsspec's HTTP raises FileNotFoundError from whatever went wrong."""
    cause = exc.__cause__
    if isinstance(exc, FileNotFoundError) and cause is not None and _status(cause) != 404 and _code(cause) is None:
        return cause
    return exc


def _response(exc: BaseException) -> dict[str, Any]:
    """botocore's parsed response, of the exception or of the one that s3fs translated."""
    for candidate in (exc, exc.__cause__):
        response = getattr(candidate, "response", None)
        if isinstance(response, dict):
            return response
    return {}


def _code(exc: BaseException) -> str | None:
    code = _response(exc).get("Error", {}).get("Code")
    return None if code is None else str(code)


def _status(exc: BaseException) -> int | None:
    status = getattr(exc, "status", None) or _response(exc).get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status if isinstance(status, int) else None


def _reason(exc: BaseException, path: str) -> tuple[Callable[[str], StreamvidError], str] | None:
    """The class of error and the end of its sentence, or None for what is a defect and no user's doing."""
    names = {cls.__name__ for cls in type(exc).__mro__}
    third_party = type(exc).__module__.split(".")[0] not in ("builtins", "streamvid")
    code, status = _code(exc), _status(exc)
    number = exc.errno if isinstance(exc, OSError) else None
    s3 = get_protocol(path) in _OPTIONS

    if isinstance(exc, ImportError):
        return InputError, f"a Python package for this kind of storage is missing ({_detail(exc)})"
    if isinstance(exc, ValueError) and "Protocol not known" in str(exc):
        known = "local paths, s3:// and whatever else fsspec knows can be used"
        return InputError, f"'{get_protocol(path)}' is not a known protocol; {known}"
    if code == "NoSuchBucket":
        return DatasetError, "there is no such bucket; check its name and AWS_ENDPOINT_URL"
    if isinstance(exc, FileNotFoundError) or status == 404:
        return DatasetError, "it does not exist; check the path"
    if names & _NO_CREDENTIALS:
        return DatasetError, "no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"
    if code in _REFUSED_CREDENTIALS:
        return DatasetError, (
            f"the storage refuses the credentials ({code}); "
            "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and this machine's clock"
        )
    if isinstance(exc, PermissionError) or status in (401, 403):
        if is_local(path):
            return DatasetError, "permission denied; check who owns it and its mode"
        check = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the bucket's policy" if s3 else "them"
        return DatasetError, f"access is refused: the credentials are wrong or lack this permission; check {check}"
    if isinstance(exc, IsADirectoryError):
        return DatasetError, "it is a folder; name a file"
    if isinstance(exc, (NotADirectoryError, FileExistsError)):
        return DatasetError, "a part of the path is a file where a folder is needed; check the path"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return DatasetError, "the disk is full or the quota used up; free some space"
    if names & _BROKEN_CONNECTION or number in _BROKEN_ERRNOS or (status is not None and status >= 500):
        endpoint = "AWS_ENDPOINT_URL" if s3 else "the address"
        why = f"it answers {status}" if status else type(exc).__name__
        return StorageUnavailable, (
            f"the storage cannot be reached, broke off or is overloaded ({why}); "
            f"check the network and {endpoint}, then try again"
        )
    if "ParamValidationError" in names:
        return InputError, "this cannot be the name of a bucket and a file in it; write s3://bucket/path"
    if isinstance(exc, (ValueError, NotImplementedError)):
        return InputError, _detail(exc)
    if isinstance(exc, OSError) or third_party:
        return DatasetError, _detail(exc)
    return None


def _detail(exc: BaseException) -> str:
    """An exception's own text on one line, short and without secrets."""
    text = os.strerror(exc.errno) if isinstance(exc, OSError) and exc.errno else str(exc)
    for variable in _SECRET_VARIABLES:
        if value := os.environ.get(variable):
            text = text.replace(value, "***")
    text = redact(" ".join(text.split())).rstrip(".")
    return text[:200] or type(exc).__name__
