"""fsspec's clients of storages, and their credentials. There is one for calls that a `Retry` repeats, and one for all
others."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from functools import cache, partial, wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast
from urllib.parse import quote, urlsplit

import fsspec
from fsspec.core import url_to_fs
from fsspec.utils import get_protocol

from streamvid.errors import InputError
from streamvid.storage.explain import AccessRefused, NoCredentials, explained, raise_refusal
from streamvid.storage.link import MOST_REQUESTS
from streamvid.storage.retry import Retry
from streamvid.storage.url import AnyPath, is_local, local_path, redact, split_query

if TYPE_CHECKING:
    from yarl import URL

STALL_SECONDS: Final = 20.0
"""Seconds without a byte after which a connection of a run counts as broken."""
CONNECT_SECONDS: Final = 10.0

# By default s3fs reads blocks of 50 MiB and holds ten of them in memory for every file being fetched; 8 MiB are as
# fast. Its cache of listings never expires.
_S3_OPTIONS: Final = {"default_block_size": 8 * 2**20, "use_listings_cache": False}
_S3: Final = ("s3", "s3a")
_HTTP: Final = ("http", "https")
_TELL_SECRETS: Final = ("botocore.auth", "botocore.endpoint", "botocore.parsers", "s3fs", "fsspec.http")
"""Loggers whose details, at level DEBUG, hold session tokens, signatures, signed URLs, answers with credentials, and
keys of encrypted objects."""
_NO_STORAGE: Final = {"data", "tar", "zip", "libarchive", "blockcache", "cached", "filecache", "simplecache"}
"""Protocols of fsspec for files within others, or in front of another protocol (`simplecache::s3://…`)."""
_TWO_COLONS: Final = "\ue000"
"""Stands for the `::` of a URL that fsspec would take for a chain there; a character that no standard has a use for."""
_UNSENDABLE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})|[^!-~]|[\"<>\\^`{|}]")
"""Characters that the path and query of a web address cannot hold (RFC 3986, 2)."""
T = TypeVar("T")
P = ParamSpec("P")

# References that keep remote file systems alive in forked children. fsspec drops its own there; s3fs then closes the
# inherited connections, which removes them from the epoll set that child and parent share, and the parent's next
# request waits 15 s for an answer that it cannot see.
_kept: dict[int, Any] = {}


def locate(path: AnyPath, *, patient: bool = False) -> tuple[Any, str]:
    """fsspec's file system for a path, and the name in it. For a `patient` caller, which retries itself, the client
    does not retry. A local name with `::` does not count as a chained URL."""
    text = os.fspath(path)
    if not text:
        raise InputError("An empty path was given; name a file or folder.")
    if is_local(text):
        return fsspec.filesystem("file"), local_path(text)
    protocol = get_protocol(text)
    if protocol in _NO_STORAGE and "::" not in text:
        raise InputError(
            f"{redact(text)}: {protocol}:// names no storage; use a local path, s3://, gs://, az://, hf://, https://, "
            "or another that fsspec knows"
        )
    first, _, rest = split_query(text)[0].partition("::")
    if "://" in rest and get_protocol(rest) == protocol:  # fsspec would open the first alone
        raise InputError(f"{redact(text)} names several places, joined by ::, as WebDataset does: give them one by one")
    try:
        options = _options(protocol, patient=patient)
        if "://" in first and "://" not in rest:  # not a chained URL, but a name, or a host by its IPv6 address
            fs, name = url_to_fs(text.replace("::", _TWO_COLONS), **options)
            name = name.replace(_TWO_COLONS, "::")
        else:
            fs, name = url_to_fs(text, **options)
    except (TypeError, AttributeError) as error:  # as raised by a class that needs further arguments
        raise InputError(
            f"{redact(text)}: fsspec opens no {protocol}:// by its URL alone; use a local path or another protocol"
        ) from error
    keep(fs)
    if protocol in _HTTP:
        fs.encode_url = as_written
    for logger in _TELL_SECRETS:
        logging.getLogger(logger).addFilter(_no_details)  # once, because it is the same filter each time
    if is_s3(fs) and patient:
        fs.retries = 1  # other options give another instance
    return fs, name


def as_written(address: str) -> URL:
    """A web address for aiohttp, whose path and query are sent as they are written: a signature may cover each
    character, and yarl would write ``/`` for ``%2F``. Only what no request can hold is escaped."""
    from yarl import URL

    url, parts = URL(address), urlsplit(address)
    if re.search("/[.]{1,2}(/|$)", parts.path):  # a list may name videos above it
        return url  # without ``..``
    path, query = (
        _UNSENDABLE.sub(lambda found: quote(found[0], safe="", errors="surrogateescape"), text) for text in parts[2:4]
    )
    return URL.build(scheme=url.scheme, authority=url.raw_authority, path=path or "/", query_string=query, encoded=True)


def _no_details(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


def keep(fs: T) -> T:
    """Keep a file system alive until the process ends."""
    _kept[id(fs)] = fs
    return fs


def _options(protocol: str, *, patient: bool) -> dict[str, Any]:
    """fsspec's options for a protocol. The user's configuration (FSSPEC_…) takes precedence."""
    configured = fsspec.config.conf.get(protocol, {})
    if protocol in _S3:
        once = {
            "retries": {"total_max_attempts": 1}, "connect_timeout": CONNECT_SECONDS, "read_timeout": STALL_SECONDS,
            "max_pool_connections": MOST_REQUESTS,
        }  # fmt: skip
        config = {"http_session_cls": _no_redirects()} | (once if patient else {})
        return {**_S3_OPTIONS, "config_kwargs": {**config, **configured.get("config_kwargs", {})}}
    if protocol in _HTTP:
        # HTTP_PROXY, HTTPS_PROXY, NO_PROXY, as botocore uses them; and redirects to signed URLs as they are.
        client: dict[str, Any] = {"trust_env": True, "requote_redirect_url": False}
        if patient:
            from aiohttp import ClientTimeout

            timeout = ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=STALL_SECONDS)
            client |= {"timeout": timeout, "raise_for_status": raise_refusal}
        return {"client_kwargs": {**client, **configured.get("client_kwargs", {})}}
    return {}


@cache
def _no_redirects() -> type:
    """A class of session for botocore whose requests follow no redirects. aiohttp would follow them, and leave out the
    signature for another host, so that S3 refuses the request. botocore looks up the region instead, and signs anew.
    With an aiobotocore that names the method otherwise, nothing changes."""
    import s3fs  # noqa: F401  # so that an error names this package, which brings the other
    from aiobotocore.httpsession import AIOHTTPSession

    class NoRedirects(AIOHTTPSession):  # type: ignore[misc]
        async def _get_session(self, proxy_url: object) -> Any:
            session = await super()._get_session(proxy_url)
            return SimpleNamespace(request=partial(session.request, allow_redirects=False))

    return NoRedirects


def asked(path: AnyPath, ask: Callable[[], T], retry: Retry | None, *, action: str = "read") -> T:
    """Call `ask`, with its errors explained, and repeat it as `retry` says; without one, once if S3 refuses the
    credentials: a long command may have outlived those that it began with."""
    refused: set[str] = set()

    def attempt() -> T:
        renew_credentials(refused)
        try:
            with explained(path, action):
                return ask()
        except AccessRefused:
            refused.add(os.fspath(path))
            raise

    if retry is not None:
        return retry(attempt)
    try:
        return attempt()
    except AccessRefused as error:
        if isinstance(error, NoCredentials) or not in_s3(path):
            raise
        return attempt()


def renewing(action: str, *, at: int = 0) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator that has a function called by `asked`, without a `Retry`; its path is the argument of number `at`."""

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> T:
            return asked(cast(AnyPath, args[at]), lambda: function(*args, **options), None, action=action)

        return call

    return decorated


def renew_credentials(refused: set[str]) -> None:
    """Drop the clients of S3 if one of these paths was refused, so that the next ones look up their credentials again,
    if they can; empties the set. A dropped client ends with its last user: one that is connected anew would keep what
    it had before as well, 25 MB each time."""
    if any(map(in_s3, refused)):
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        for number, fs in list(_kept.items()):
            if is_s3(fs):
                _kept.pop(number, None)
    refused.clear()


def in_s3(path: AnyPath) -> bool:
    """Whether a path names an object in S3."""
    return get_protocol(os.fspath(path)) in _S3


def is_s3(fs: Any) -> bool:
    return type(fs).__name__ == "S3FileSystem"


def has_ranges(path: AnyPath) -> bool:
    """Whether the storage supports ranged requests for sure; many small HTTP servers do not."""
    return get_protocol(os.fspath(path)) not in _HTTP
