"""Paths and URLs as text: checking, joining, and removing secrets. Nothing is opened here."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Final

from fsspec.implementations.local import make_path_posix
from fsspec.utils import get_protocol

from streamvid.errors import InputError

AnyPath = str | os.PathLike[str]

DOT_SEGMENTS: Final = "(?i)(^|/|%2f)([.]|%2e){1,2}(/|%2f|$)"
"""Matches a path with the segments ``.`` or ``..``, also as web servers read them (RFC 3986, 6.2.2.2). A pattern for
`re` and for Arrow."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+._\-]*:(//|:)")
_LOCAL = re.compile(r"^(file|local):(//)?")
_IMPOSSIBLE = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")  # \udc80 to \udcff: bytes, see `os.fsdecode`
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):/(?!/)")
_NO_BUCKET = re.compile(r"(s3|gs|gcs|az|abfs|oci|oss)://(/|$)")
_NO_HOST = re.compile(r"(https?)://(/|$)")
_FILE_HOST = re.compile(r"(?:file|local)://(?:localhost(?=/)|(?=[^/.]))")
_USERINFO = re.compile(r"(://)[^/\s@]*(?:@[^/\s@]*)*@")
_SECRET_PART = re.compile(
    # Not ?key=folder/video.mp4, by which servers of files name them. Other extensions might be the end of a secret.
    r"([?&;,\s](?!key=[^&;,\s#]*\.(?:mp4|m4v|mov|mkv|webm|avi|m?ts|m2ts|mpe?g|flv|wmv|tar)(?:[&;,\s#]|$))"
    # hdn: Akamai's hdnts and hdnea.
    r"[^=&;,\s]*(?:key|secret|token|sig|signature|credential|passw|auth|jwt|hdn)[^=&;,\s]*=)[^&;,\s#]*",
    re.IGNORECASE,
)

_SIGNATURE = re.compile(r"[?&](x-amz-signature|x-goog-signature|signature|sig)=", re.IGNORECASE)
_OF_SIGNATURES = re.compile(
    r"(x-(amz|goog)-[a-z0-9-]+|awsaccesskeyid|googleaccessid|key-pair-id|policy|expires|signature"
    r"|s(v|s|rt|p|e|t|pr|ip|r|kn|koid|ktid|kt|ke|ks|kv|dd|es|aoid|uoid|cid|ig))=.*",
    re.IGNORECASE | re.DOTALL,
)
"""Parameters of signed URLs of S3, Google, CloudFront and Azure."""


def given_path(path: object, name: str) -> str:
    """A path or URL that a user gave, as text.

    Raises:
        InputError: the value is no path or URL, or a misleading one: "" would be the current folder, and ``~/x`` and
            ``s3:/x`` would be folders below it, and so would ``file://localhost/x``.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(text := os.fspath(path), str):
        raise InputError(f"{name} must be a path or URL; it is {path!r}"[:300])
    if strange := _IMPOSSIBLE.search(text):
        raise InputError(f"{name} {text[:200]!r} has the character {strange[0]!r}, which no path can have: remove it")
    if not text.strip():
        raise InputError(f"{name} is an empty path: name it, or write . for the current folder")
    if text == "~" or text.startswith("~/"):
        raise InputError(f"{name} {text}: only a shell replaces ~ by the home folder; write {os.path.expanduser(text)}")
    one_slash = _ONE_SLASH.match(text)
    if one_slash and one_slash[1] not in ("file", "local"):
        raise InputError(f"{name} {redact(text)}: a URL has two slashes; write {redact(text.replace(':/', '://', 1))}")
    if _NO_BUCKET.match(text):
        raise InputError(f"{name} {redact(text)} names no bucket: write {text.partition(':')[0]}://BUCKET/FOLDER")
    if _NO_HOST.match(text):
        raise InputError(f"{name} {redact(text)} names no host: write {text.partition(':')[0]}://HOST/PATH")
    if named := _FILE_HOST.match(text):
        raise InputError(
            f"{name} {text}: a URL of a file has three slashes; write file:///{text[named.end() :].lstrip('/')}"
        )
    return text


def given_paths(given: object, name: str) -> list[str]:
    """Paths or URLs that a user gave, one or several; errors as in `given_path`."""
    try:
        several = [given] if isinstance(given, str | os.PathLike) else [*given]  # type: ignore[misc]
    except TypeError:  # also raised for an array without dimensions
        raise InputError(f"{name} must be a path or URL or a list of them; it is {given!r}"[:300]) from None
    found = []
    for url in several:
        if not isinstance(url, str | os.PathLike):
            raise InputError(f"{name} must be paths or URLs, one of them is {url!r}"[:300])
        found.append(given_path(url, name))
    return found


def is_local(path: AnyPath) -> bool:
    """Whether the path is on a local or mounted file system: no URL, or a `file://` URL."""
    text = os.fspath(path)
    if not (_URL.match(text) and "://" in text):
        return True
    return get_protocol(text) in ("file", "local")


def local_path(path: AnyPath) -> str:
    """The absolute path of a local path or ``file://`` URL.

    Raises:
        InputError: it is relative, and the working directory was removed.
    """
    try:
        return str(make_path_posix(_LOCAL.sub("", os.fspath(path)))).rstrip("/") or "/"
    except FileNotFoundError as error:
        raise InputError(
            f"{os.fspath(path)}: the working directory was removed; change to another one, or give an absolute path"
        ) from error


def given_local_path(path: object, name: str) -> str:
    """The absolute path of a local path or ``file://`` URL that a user gave. Absolute now, as the program or its
    workers may change the working directory later.

    Raises:
        InputError: as in `given_path` and `local_path`; or it is the URL of a bucket or server, which would be a folder
            ``s3:`` below the working directory.
    """
    text = given_path(path, name)
    if not is_local(text):
        raise InputError(f"{name} must be a local path; it is {redact(text)}")
    return local_path(text)


def split_query(path: AnyPath) -> tuple[str, str]:
    """A web address without its query, and the query with its ``?``; of any other path, itself and ""."""
    text = os.fspath(path)
    address, mark, query = text.partition("?") if get_protocol(text) in ("http", "https") else (text, "", "")
    return address, mark + query


def has_extension(path: AnyPath, extensions: tuple[str, ...]) -> bool:
    """Whether a path, or a web address before its query, ends in one of these, given in lower case."""
    return split_query(path)[0].lower().endswith(extensions)


def join(base: AnyPath, *parts: str) -> str:
    """`base` with `parts` below it, separated by single slashes. The parts are not checked for `..` and the like. The
    query of a web address stays at its end: a token, or Azure's signature of a folder, is good for the files in it."""
    joined, query = split_query(base)
    for part in parts:
        joined = joined + part if joined.endswith("/") else f"{joined}/{part}"
    return joined + query


def redact(url: AnyPath) -> str:
    """A URL, or a text with URLs, made fit for a message: user names, passwords and secret query parts become `***`."""
    name = os.fspath(url)
    if name.startswith("/proc/self/fd/"):
        with suppress(OSError):
            name = os.readlink(name)  # the name of an open file
    text = _USERINFO.sub(r"\1***@", name)
    return _SECRET_PART.sub(r"\1***", text)


def unsigned(url: str) -> str:
    """A URL without its signature, which is another each time that the URL is signed."""
    if not _SIGNATURE.search(url):
        return url
    address, _, query = url.partition("?")
    kept = "&".join(parameter for parameter in query.split("&") if not _OF_SIGNATURES.fullmatch(parameter))
    return f"{address}?{kept}" if kept else address


def real_path(path: str) -> str:
    """A local path without links; a URL without a slash at its end."""
    return os.path.realpath(local_path(path)) if is_local(path) else path.rstrip("/")


def is_within(path: str, folder: str) -> bool:
    """Whether a real path is the folder, or lies below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
