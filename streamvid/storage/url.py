"""Paths and URLs as text: local or remote, joined, and with secrets removed. Nothing is opened here."""

from __future__ import annotations

import os
import re

from fsspec.implementations.local import make_path_posix
from fsspec.utils import get_protocol

AnyPath = str | os.PathLike[str]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:(//|:)")
_LOCAL = re.compile(r"^(file|local):(//)?")
_USERINFO = re.compile(r"(://)[^/\s@]*(?:@[^/\s@]*)*@")
_SECRET_PART = re.compile(
    r"([?&;,\s][^=&;,\s]*(?:key|secret|token|sig|signature|credential|passw|auth)[^=&;,\s]*=)[^&;,\s#]*", re.IGNORECASE
)


def is_local(path: AnyPath) -> bool:
    """Whether the path is on a local or mounted file system: no URL, or one of `file://`."""
    text = os.fspath(path)
    if not (_URL.match(text) and "://" in text):
        return True
    return get_protocol(text) in ("file", "local")


def local_path(path: AnyPath) -> str:
    """The absolute path of a local path or ``file://`` URL."""
    return str(make_path_posix(_LOCAL.sub("", os.fspath(path)))).rstrip("/") or "/"


def join(base: AnyPath, *parts: str) -> str:
    """`base` with `parts` below it, separated by single slashes. The parts are not checked for `..` and the like."""
    joined = os.fspath(base)
    for part in parts:
        joined = joined + part if joined.endswith("/") else f"{joined}/{part}"
    return joined


def redact(url: AnyPath) -> str:
    """A URL, or a text with URLs, fit for a message: user names, passwords and secret query parts become `***`."""
    text = _USERINFO.sub(r"\1***@", os.fspath(url))
    return _SECRET_PART.sub(r"\1***", text)
