"""Translates the exceptions of fsspec, botocore, aiohttp and the OS into one-sentence errors that say what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import ssl
from collections.abc import Callable, Iterator
from typing import Any, Final

from fsspec.utils import get_protocol

from streamvid.errors import DatasetError, InputError, StreamvidError
from streamvid.host import BROKEN_ERRNOS, limit_met
from streamvid.storage.regular_file import NotAFileError
from streamvid.storage.url import AnyPath, is_local, redact

_S3 = ("s3", "s3a")
_SECRET_VARIABLE = re.compile("SECRET|TOKEN|PASSWORD|CREDENTIAL", re.IGNORECASE)
_SHORTEST_SECRET = 8
_Reason = tuple[type[StreamvidError], str]
"""The class of an error and the end of its sentence."""

EXPIRED: Final = "expired"
"""Stands for the error code if only the text of an answer says that a signature or token has expired."""
_REFUSED_CREDENTIALS = {
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired",
    "RequestTimeTooSkewed", "AuthenticationFailed", EXPIRED,
}  # fmt: skip
_ELSEWHERE: Final = {
    "PermanentRedirect", "AuthorizationHeaderMalformed", "AuthorizationQueryParametersError",
    "IllegalLocationConstraintException",
}  # fmt: skip
_ARCHIVED: Final = {"InvalidObjectState", "BlobArchived"}
"""Of S3's classes such as Glacier, and Azure's."""
# By name, because the packages that define them are imported only when used.
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError"}
_BROKEN_CONNECTION = {
    "ConnectionError", "TimeoutError", "HTTPClientError", "ClientConnectionError", "ClientPayloadError",
    "IncompleteRead", "IncompleteReadError", "ResponseParserError", "gaierror",
    "ServiceRequestError", "ServiceResponseError",  # Azure
    "NetworkError", "TimeoutException", "RemoteProtocolError",  # httpx, of Hugging Face's client
}  # fmt: skip
_UNAVAILABLE_STATUSES = {408, 425, 429}
_UNAVAILABLE = {
    "RequestTimeout", "RequestTimeoutException", "SlowDown", "Throttling", "ThrottlingException", "RequestThrottled",
    "RequestLimitExceeded", "TooManyRequests", "InternalError", "ServiceUnavailable", "OperationAborted",
    "rateLimitExceeded", "userRateLimitExceeded",  # Google
    "ServerBusy", "OperationTimedOut",  # Azure
    "BadDigest", "XAmzContentSHA256Mismatch", "IncompleteBody",  # the request arrived in another form than it was sent
}  # fmt: skip


_CODE_HEADERS = ("x-amz-error-code", "x-ms-error-code")
_CODE = re.compile(rb'<Code>(\w{1,64})</Code>|"(?:reason|code)"\s*:\s*"(\w{1,64})"')
_HAS_EXPIRED = re.compile(rb"\bexpired\b|not valid in the specified time frame", re.IGNORECASE)


NO_RANGES: Final = "its server does not answer requests for ranges of bytes: use one that does"
NO_ADDRESS: Final = "it redirects to something that is no web address"


class StorageUnavailable(DatasetError):  # noqa: N818
    """The storage did not answer, broke the connection or was overloaded, so that a repetition may succeed."""


class AccessRefused(DatasetError):  # noqa: N818
    """The storage refuses the credentials, possibly only while they are being renewed."""


class NoCredentials(AccessRefused):
    """No credentials are found, perhaps because their file is being written anew."""


class MissingFile(DatasetError):  # noqa: N818
    """A file does not exist."""


class DiskFull(DatasetError):  # noqa: N818
    """A disk is full, or a quota used up: of the storage, or of this machine while a file is copied."""


class FileChangedError(DatasetError):
    """A file is not of the requested version."""


class NoRangesError(DatasetError):
    """A server does not support ranges and sends only whole files."""

    @classmethod
    def of(cls, url: str) -> NoRangesError:
        return cls(
            f"Cannot read {redact(url)}: {NO_RANGES}, or have whole shards fetched (fetch='shards' of StreamLoader)."
        )


class RefusedError(OSError):
    """An error response of a storage, with a `response` like botocore's. The message leaves out the URL, which may be
    secret."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"the storage answers {status}{'' if code == str(status) else f' {code}'}")
        self.status, self.code = status, code
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


async def refusal(answer: Any) -> RefusedError:
    """The error for a response of aiohttp, with the code that S3, Google or Azure give in its headers or body."""
    body = b""
    with contextlib.suppress(Exception):  # the status is known without the body
        body = await answer.content.read(1 << 16)
    answer.close()
    code = next(
        (given for name in _CODE_HEADERS if re.fullmatch(r"\w{1,64}", given := answer.headers.get(name, ""))), ""
    )
    if not code and (found := _CODE.search(body)):
        code = (found[1] or found[2]).decode()
    if answer.status in (400, 401, 403) and code not in _REFUSED_CREDENTIALS and _HAS_EXPIRED.search(body):
        code = EXPIRED
    return RefusedError(answer.status, code or str(answer.status))


async def raise_refusal(answer: Any) -> None:
    """Raise the error of a response; used as `raise_for_status` of aiohttp's sessions. Statuses 404 and 416 are left to
    fsspec."""
    if answer.status >= 400 and answer.status not in (404, 416):
        raise await refusal(answer)


@contextlib.contextmanager
def explained(path: AnyPath, action: str) -> Iterator[None]:
    """A context that translates exceptions into InputError, DatasetError or StorageUnavailable about `path`, and into
    StreamvidError if a limit of this process is met. Exceptions that no user can cause, such as a TypeError, pass
    unchanged."""
    try:
        yield
    except StreamvidError:
        raise
    except Exception as exc:
        text = os.fspath(path)
        reason = _reason(true_cause(exc), text)
        if reason is None:
            raise
        kind, what = reason
        # Drop the original exception if its text may contain secrets of the URL.
        cause = exc if redact(text) == text else None
        raise kind(f"Cannot {action} {redact(text)}: {what}.", path=redact(text)) from cause


def true_cause(exc: BaseException) -> BaseException:
    """The cause of a FileNotFoundError, which fsspec's HTTP file system raises for any failure; else `exc` itself."""
    cause = exc.__cause__
    # fsspec's memory file system raises it from a KeyError for a missing file.
    if not isinstance(exc, FileNotFoundError) or cause is None or isinstance(cause, KeyError):
        return exc
    return exc if status_of(cause) == 404 or (code_of(cause) or "").startswith("NoSuch") else cause


def _response(exc: BaseException) -> dict[str, Any]:
    """botocore's parsed response from an exception, or from the one that s3fs translated."""
    for candidate in (exc, exc.__cause__):
        response = getattr(candidate, "response", None)
        if isinstance(response, dict):
            return response
    return {}


def code_of(exc: BaseException) -> str | None:
    """The error code of the response that caused an exception; None if there is none."""
    code = _response(exc).get("Error", {}).get("Code") or getattr(exc, "error_code", None)
    return None if code is None else str(code)


def status_of(exc: BaseException) -> int | None:
    """The HTTP status of the response that caused an exception; None if there is none."""
    for name in ("status", "status_code", "code"):  # aiohttp's, Azure's, gcsfs'
        if isinstance(status := getattr(exc, name, None), int):
            return status
    status = _response(exc).get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status if isinstance(status, int) else None


class _Failure:
    """An exception about `path`, and what the rules ask about it."""

    def __init__(self, exc: BaseException, path: str) -> None:
        self.exc, self.path = exc, path
        self.names = {kind.__name__ for kind in type(exc).__mro__}
        self.code, self.status = code_of(exc), status_of(exc)
        self.number = exc.errno if isinstance(exc, OSError) else None
        self.protocol: str = get_protocol(path)
        self.s3 = self.protocol in _S3
        status = self.status or 0
        self.busy = self.code in _UNAVAILABLE or status >= 500 or status in _UNAVAILABLE_STATUSES


def _reason(exc: BaseException, path: str) -> _Reason | None:
    """The reason of the first rule that has one; None for exceptions that no user can cause."""
    failure = _Failure(exc, path)
    return next((reason for rules in _RULES if (reason := rules(failure)) is not None), None)


def _of_protocol(failure: _Failure) -> _Reason | None:
    """Requests, packages and settings that a protocol needs."""
    exc, protocol = failure.exc, failure.protocol
    if failure.status in (405, 501):
        what = failure.code or failure.status
        return DatasetError, f"the storage does not know such a request ({what}): use another, or a newer one"
    if isinstance(exc, ImportError):
        cause = exc if isinstance(exc, ModuleNotFoundError) else exc.__cause__
        if not isinstance(cause, ModuleNotFoundError) or not cause.name:
            return InputError, f"the Python package for {protocol}:// cannot be imported ({_detail(exc)})"
        package = cause.name.partition(".")[0]
        package = {"smbclient": "smbprotocol"}.get(package, package)
        return InputError, f"{protocol}:// needs a Python package that is missing: pip install {package}"
    if isinstance(exc, OSError) and ("libjvm" in str(exc) or "libhdfs" in str(exc)):
        needs = "needs Java and Hadoop's libraries: set JAVA_HOME, HADOOP_HOME and CLASSPATH, or use webhdfs://"
        return InputError, f"{protocol}:// {needs}"
    if isinstance(exc, ValueError) and "Protocol not known" in str(exc):
        known = "use a local path, s3:// or another protocol that fsspec knows, in lower case"
        return InputError, f"'{protocol}' is not a known protocol; {known}"
    if failure.s3 and ("Invalid endpoint" in str(exc) or "Custom endpoint" in str(exc)):
        return InputError, "AWS_ENDPOINT_URL is no URL; write http://host:port or https://host"
    if "ProfileNotFound" in failure.names:
        return DatasetError, f"{_detail(exc)}; check AWS_PROFILE and the AWS config file"
    return None


def _of_object(failure: _Failure) -> _Reason | None:
    """Buckets and files that are elsewhere, or nowhere."""
    exc, code, status = failure.exc, failure.code, failure.status
    if failure.s3 and status == 307:  # while the DNS does not know a new bucket
        return StorageUnavailable, f"the storage redirects for a while ({code}); check AWS_REGION if it goes on"
    if failure.s3 and isinstance(exc, RecursionError):  # botocore asks for the bucket's region again at each redirect
        code, status = "all is redirected", 301
    if failure.s3 and (code in _ELSEWHERE or (status is not None and 300 <= status < 400)):
        return DatasetError, f"its bucket is in another region ({code}); check AWS_REGION and AWS_ENDPOINT_URL"
    if code == "NoSuchBucket":
        return DatasetError, "there is no such bucket; check its name and AWS_ENDPOINT_URL"
    if code in _ARCHIVED:
        return DatasetError, "it is in an archive, from which the storage reads nothing at once: restore it there first"
    if isinstance(exc, FileNotFoundError) or status == 404:
        return MissingFile, "it does not exist; check the path"
    return None


def _of_credentials(failure: _Failure) -> _Reason | None:
    """Credentials that are missing or refused, and permissions."""
    code, status, s3 = failure.code, failure.status, failure.s3
    if failure.names & _NO_CREDENTIALS:
        return NoCredentials, (
            "no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile; to read a "
            "public bucket without any, FSSPEC_S3_ANON=true"
        )
    if "CredentialRetrievalError" in failure.names:
        return AccessRefused, "the credentials cannot be fetched; check the service or command that gives them"
    if code in _REFUSED_CREDENTIALS:
        check = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN" if s3 else "how long its URL is good"
        return AccessRefused, f"the storage refuses the credentials ({code}); check {check} and this machine's clock"
    if status == 400 and code == "400" and s3:
        # The response to a HEAD has no body with a reason.
        return AccessRefused, "it answers 400 as to expired credentials; check them and this machine's clock"
    if failure.busy or not (isinstance(failure.exc, PermissionError) or status in (401, 403)):
        return None
    if is_local(failure.path):
        return DatasetError, "permission denied; check who owns it and its mode"
    # Who may not list a bucket is not told what does not exist there; web servers in front of one answer the same.
    aws = "the path, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the bucket's policy"
    return AccessRefused, (
        "access is refused: the credentials are wrong or lack this permission, or there is no such file, which not "
        f"every storage says; check {aws if s3 else 'the path and credentials'}"
    )


def _of_path(failure: _Failure) -> _Reason | None:
    """Paths and addresses that lead to no file, proxies, and disks that cannot be written."""
    exc, names, number = failure.exc, failure.names, failure.number
    if isinstance(exc, NotAFileError):
        return DatasetError, f"it is {exc.strerror}; check the path"
    if isinstance(exc, IsADirectoryError):
        return DatasetError, "it is a folder; name a file"
    if isinstance(exc, (NotADirectoryError, FileExistsError)):
        return DatasetError, "a part of the path is a file where a folder is needed; check the path"
    if failure.status == 407:
        named = "check HTTP_PROXY and HTTPS_PROXY: http://NAME:PASSWORD@…"
        return DatasetError, f"the proxy wants a name and password; {named}"
    if "TooManyRedirects" in names:
        return DatasetError, "it redirects again and again; check the address"
    if names & {"InvalidUrlRedirectClientError", "NonHttpUrlRedirectClientError"}:
        return DatasetError, NO_ADDRESS
    if "InvalidURL" in names and str(exc) not in failure.path:  # aiohttp's, of a proxy; it may contain a password
        return InputError, "HTTP_PROXY or HTTPS_PROXY is no URL; write http://host:port"
    if number in (errno.ELOOP, errno.ENAMETOOLONG):
        return DatasetError, f"{_detail(exc).lower()}; check the path"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull, "the disk is full or the quota used up; free some space"
    if number == errno.EROFS:
        return DatasetError, "its file system is read-only; mount it for writing, or name another place"
    return None


def _of_certificates(failure: _Failure) -> _Reason | None:
    """Certificates of servers that are not trusted, and files of them that cannot be read."""
    inner = _inner(failure.exc)
    refused = getattr(inner, "certificate_error", inner.__cause__)  # of aiohttp
    check = "AWS_ENDPOINT_URL" if failure.s3 else "the address"
    if type(inner).__name__ == "ClientConnectorSSLError":  # aiohttp: no file was read
        plain = "WRONG_VERSION_NUMBER" in str(inner)
        return (InputError, f"it does not speak TLS; check {check}: http:// or https://") if plain else None
    if not isinstance(refused, ssl.SSLCertVerificationError):
        if inner is failure.exc or not isinstance(inner, FileNotFoundError | PermissionError | ssl.SSLError):
            return None
        return InputError, "the certificates that it is checked with cannot be read; check AWS_CA_BUNDLE"
    variable = "AWS_CA_BUNDLE" if failure.s3 else "SSL_CERT_FILE"
    why = str(refused.verify_message).rstrip(".")
    return AccessRefused, f"its certificate is not trusted ({why}); check {check}, and {variable} for a CA of your own"


def _of_connection(failure: _Failure) -> _Reason | None:
    """Disks and connections that break, storages that are overloaded, and limits of this process."""
    exc, names, code, status = failure.exc, failure.names, failure.code, failure.status
    if is_local(failure.path) and failure.number in BROKEN_ERRNOS:
        return StorageUnavailable, f"{_detail(exc).lower()}; check the disk, or the network if it is mounted from there"
    limit = limit_met(_inner(exc))
    if limit is not None and "HTTPClientError" in names:
        return StreamvidError, limit
    # aiohttp gives a response that is not HTTP a status of its own.
    garbage = "ClientResponseError" in names and type(exc.__cause__).__module__ == "aiohttp.http_exceptions"
    if not (failure.busy or garbage or names & _BROKEN_CONNECTION or failure.number in BROKEN_ERRNOS):
        return None if limit is None else (StreamvidError, limit)
    endpoint = "AWS_ENDPOINT_URL" if failure.s3 else "the address"
    if any("ProxyConnectionError" in name for name in names):
        endpoint = "the proxy (HTTP_PROXY, HTTPS_PROXY, NO_PROXY)"
    why = type(exc).__name__
    if garbage:
        why = "what it answers is not HTTP"
    elif status:
        why = f"it answers {status}" + ("" if code in (None, str(status)) else f" {code}")
    return StorageUnavailable, (
        f"the storage cannot be reached, broke off or is overloaded ({why}); "
        f"check the network and {endpoint}, then try again"
    )


def _of_other(failure: _Failure) -> _Reason | None:
    """All other errors of a system or a library, in their own words."""
    exc, code = failure.exc, failure.code
    if "ParamValidationError" in failure.names:
        return InputError, "this cannot be the name of a bucket and a file in it; write s3://bucket/path"
    if isinstance(exc, (ValueError, NotImplementedError)):
        return InputError, _detail(exc)
    if not isinstance(exc, OSError) and type(exc).__module__.split(".")[0] in ("builtins", "streamvid"):
        return None
    detail = _detail(exc)
    if "RefusedError" in failure.names:
        return DatasetError, f"{detail}; check the address, and look into its server's log"
    # s3fs has an errno for each code, as EINVAL for InvalidPart; the code says more.
    told = failure.s3 and code is not None and code not in detail
    return DatasetError, f"the storage answers {code} ({detail.lower()})" if told else detail


_RULES: Final[tuple[Callable[[_Failure], _Reason | None], ...]] = (
    _of_protocol, _of_object, _of_credentials, _of_path, _of_certificates, _of_connection, _of_other,
)  # fmt: skip
"""Tried in this order: an exception that one explains may fit a later one, too."""


def _inner(exc: BaseException) -> BaseException:
    """The error that botocore's HTTPClientError is about; any other is returned as it is."""
    wrapped = getattr(exc, "kwargs", None)
    inner = wrapped.get("error") if isinstance(wrapped, dict) else None
    return inner if isinstance(inner, BaseException) else exc


def _detail(exc: BaseException) -> str:
    """An exception's text on one line, shortened and without secrets."""
    text = os.strerror(exc.errno) if isinstance(exc, OSError) and exc.errno else str(exc)
    for name, value in os.environ.items():
        if _SECRET_VARIABLE.search(name) and len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, "***")
    text = redact(" ".join(text.split())).rstrip(".")
    return text[:200] or type(exc).__name__
