"""Reads ranges of objects in S3, by URLs that botocore signs.

botocore takes a millisecond of a core to build, sign, send and parse a GetObject. A signed URL is valid for every range
of its object for some minutes, so botocore is asked for one once per object and these minutes, by its own chain of
credentials, endpoints and addressing; a range is then a plain GET, of 0.2 ms. docs/design.md has the figures, and the
reasons against obstore.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import fsspec

from streamvid.errors import InputError
from streamvid.storage import client
from streamvid.storage.explain import RefusedError, refusal
from streamvid.storage.link import MOST_REQUESTS, Link
from streamvid.storage.lru_cache import LruCache
from streamvid.storage.part import (
    HEAD_SECONDS,
    NO_SUCH_RANGE,
    Part,
    behind_end,
    body_of,
    changed,
    check_range,
    held,
    size_of,
    version,
)

_SIGNED_SECONDS: Final = 900
"""For how long a signed URL is good. It is used for half of that."""
_SIGNED_OBJECTS: Final = 16384
_OTHERWISE: Final = {"AccessDenied", "AuthorizationQueryParametersError", "PermanentRedirect", "TemporaryRedirect"}
"""Refusals of a signed URL that a request of botocore may not meet: another region, a policy that wants headers."""
_BY_REQUEST_SECONDS: Final = 60.0


class S3Ranges:
    """Reads ranges of objects. Usable in forked children."""

    def __init__(self) -> None:
        self._signed: LruCache[tuple[str, int], _Signed] = LruCache(_SIGNED_OBJECTS)
        self._by_request: dict[str, float] = {}
        """Buckets that refused signed URLs, but not botocore's requests, and until when those are made at once."""

    async def read(self, fs: Any, name: str, start: int, end: int, etag: str, link: Link) -> Part:
        """Read bytes [start, end) of an object, fewer if it ends.

        Args:
            fs: s3fs's file system.
            name: bucket and key.
            start, end: the range, not empty.
            etag: ETag that the object must have; "" for any.
            link: records how long the request took.

        Raises:
            DatasetError: the object has another ETag now, or the server sends no ranges.
            OSError, and exceptions of botocore and aiohttp: as `streamvid.storage.explain` knows them; ConnectionError
            for an answer that is not the storage's.
        """
        when = (name, int(2 * time.monotonic() / _SIGNED_SECONDS))
        if (signed := self._signed.get(when)) is None:
            signed = self._signed.put(when, await self._sign(fs, name))
        bucket = signed.wanted["Bucket"]
        if signed.url is None or time.monotonic() < self._by_request.get(bucket, 0.0):
            return await _get_object(signed, name, start, end, etag)
        try:
            part = await _get(signed, name, start, end, etag, link, ranged=bucket in link.ranged)
            if part.size != len(part.data):
                link.ranged.add(bucket)
            return part
        except RefusedError as error:
            if error.code not in _OTHERWISE and error.status not in (301, 307, 308):
                raise
        answer = await _get_object(signed, name, start, end, etag)
        self._by_request[bucket] = time.monotonic() + _BY_REQUEST_SECONDS
        return answer

    async def _sign(self, fs: Any, name: str) -> _Signed:
        bucket, key, version = fs.split_path(name)
        await fs.set_session()
        s3 = await fs.get_s3(bucket)
        wanted = {"Bucket": bucket, "Key": key} | ({"VersionId": version} if version else {})
        # Keys that the user has configured for encrypted objects are headers, which reading needs, too.
        more = fs.req_kw | {name: value for name, value in fs.s3_additional_kwargs.items() if "Customer" in name}
        if more:
            return _Signed(fs, s3, wanted | more)
        # botocore still signs URLs by version 2 by default, which newer servers refuse.
        s3.meta.events.register_first("choose-signer.s3", _version_4, unique_id="streamvid")
        url = await s3.generate_presigned_url("get_object", Params=dict(wanted), ExpiresIn=_SIGNED_SECONDS)
        return _signed(fs, s3, wanted, url)


@dataclass(frozen=True)
class _Signed:
    """How an object is read; kept because signing takes longer than a request.

    Attributes:
        fs: s3fs's file system, whose end closes the client.
        s3: botocore's client.
        wanted: its parameters for the object.
        url: signed URL of the object; None if it needs headers that only botocore makes.
        proxy: proxy for the requests.
        sessions: fsspec's HTTP file system, which makes a session of aiohttp and closes it.
    """

    fs: Any
    s3: Any
    wanted: Mapping[str, str]
    url: Any = None
    proxy: str | None = None
    sessions: Any = None


def _signed(fs: Any, s3: Any, wanted: Mapping[str, str], url: str) -> _Signed:
    from botocore.utils import get_environ_proxies
    from yarl import URL

    config = s3.meta.config
    proxies = get_environ_proxies(url) if config.proxies is None else config.proxies
    proxy = proxies.get(url.partition(":")[0])
    return _Signed(fs, s3, wanted, URL(url, encoded=True), proxy, _sessions(fs, config.client_cert))


async def _get(signed: _Signed, name: str, start: int, end: int, etag: str, link: Link, *, ranged: bool) -> Part:
    """Read a range by a GET of a signed URL. Errors do not name the URL, which is a secret for some minutes."""
    from aiohttp import ClientResponseError

    headers = {"Range": f"bytes={start}-{end - 1}"}
    if etag.startswith('"'):  # no weak ETag, which matches nothing
        headers["If-Match"] = etag
    session = await signed.sessions.set_session()
    try:
        begin = time.perf_counter()
        async with asyncio.timeout(HEAD_SECONDS):
            answer = await session.get(signed.url, headers=headers, proxy=signed.proxy, allow_redirects=False)
        async with answer:
            first = time.perf_counter() - begin
            if answer.status == 412:
                raise changed(f"s3://{name}", etag)
            if answer.status == NO_SUCH_RANGE:
                return behind_end(f"s3://{name}", start, answer.headers)
            if answer.status not in (200, 206):
                raise await refusal(answer)
            if answer.status == 200 and not version(answer.headers):
                raise ConnectionError("neither a range nor an ETag, so it is the page of a proxy")
            data = await body_of(answer, f"s3://{name}", start, end, ranged=ranged)
    except ClientResponseError as error:  # the response is not HTTP
        raise ConnectionError(error.message) from None
    link.measured(first, len(data), time.perf_counter() - begin - first)
    size = size_of(answer.headers.get("Content-Range")) if answer.status == 206 else len(data)
    return Part(data, version(answer.headers), size)


async def _get_object(signed: _Signed, name: str, start: int, end: int, etag: str) -> Part:
    """Read a range by a request of botocore."""
    from botocore.exceptions import ClientError

    match = {"IfMatch": etag} if etag.startswith('"') else {}
    try:
        response = await signed.s3.get_object(Range=f"bytes={start}-{end - 1}", **signed.wanted, **match)
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] == 412:
            raise changed(f"s3://{name}", etag) from None
        if error.response["ResponseMetadata"]["HTTPStatusCode"] == NO_SUCH_RANGE:
            return behind_end(f"s3://{name}", start, error.response["ResponseMetadata"].get("HTTPHeaders", {}))
        raise
    except ValueError as error:  # a header that botocore cannot parse
        raise ConnectionError("its response has an invalid header") from error
    try:
        status, sent = response["ResponseMetadata"]["HTTPStatusCode"], response.get("ContentRange")
        check_range(f"s3://{name}", start, end, status, sent, response.get("ContentLength"))
        data = await held(response["Body"].read, end - start)
        check_range(f"s3://{name}", start, end, status, None, len(data))
        return Part(data, version(response), size_of(sent) if status == 206 else len(data))
    finally:
        response["Body"].close()


def _version_4(signature_version: object, **_: object) -> str | None:
    return "s3v4-query" if signature_version in ("v4-query", "s3v4-query") else None


def _sessions(fs: Any, certificate: Any) -> Any:
    """fsspec's HTTP file system, which makes a session of aiohttp for each process and closes it, with the certificates
    that botocore would use."""
    from aiohttp import ClientTimeout

    verify = fs.client_kwargs.get("verify")
    if verify is None:
        verify = fs.session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE") or True
    timeout = ClientTimeout(total=None, sock_connect=client.CONNECT_SECONDS, sock_read=client.STALL_SECONDS)
    options = {"verify": verify, "certificate": certificate, "timeout": timeout}
    return client.keep(fsspec.filesystem("http", get_client=_session, client_kwargs=options))


async def _session(loop: object, verify: bool | str, certificate: Any, timeout: Any) -> Any:
    from aiohttp import ClientSession, DummyCookieJar, TCPConnector
    from botocore.httpsession import get_cert_path

    context: ssl.SSLContext | bool = False
    if verify:
        path = get_cert_path(verify)
        try:
            context = ssl.create_default_context(**{"capath" if os.path.isdir(path) else "cafile": path})
            if certificate:
                context.load_cert_chain(*([certificate] if isinstance(certificate, str) else certificate))
        except OSError as error:
            files = path if not certificate else f"{path} or {certificate}"
            raise InputError(f"the certificates in {files} cannot be read ({error}); check AWS_CA_BUNDLE") from error
    connector = TCPConnector(limit=MOST_REQUESTS, ssl=context)
    # Bodies are read in pieces of the buffer's size; the default of 64 KiB halves the speed of long ones.
    return ClientSession(
        connector=connector, timeout=timeout, cookie_jar=DummyCookieJar(), auto_decompress=False, read_bufsize=1 << 20
    )
