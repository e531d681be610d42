"""The error messages for failures of storages."""

from __future__ import annotations

import errno
import os
from http.server import BaseHTTPRequestHandler

import aiohttp
import pytest

from streamvid.dataset.dataset import Dataset
from streamvid.errors import DatasetError, InputError, StreamvidError
from streamvid.storage.explain import StorageUnavailable, explained
from tests.support.serving import serving


class LibraryError(Exception):
    """Of a library for object stores, which is not known to `explain`."""


LibraryError.__module__ = "objectstore.errors"


@pytest.mark.parametrize("name", ["status", "status_code", "code"])
def test_the_status_of_an_answer_is_known_by_whatever_name(name: str) -> None:
    """aiohttp's, Azure's, Google's."""
    error = LibraryError("-")
    setattr(error, name, 503)
    with pytest.raises(StorageUnavailable, match="it answers 503"), explained("az://a/b", "read"):
        raise error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EXDEV, "-"), r"^Cannot read a/b\.tar: Invalid cross-device link\.$"),
        (OSError(errno.EROFS, "-"), r"^Cannot read a/b\.tar: its file system is read-only; mount it for writing"),
        (LibraryError("the bucket\nis frozen."), r"^Cannot read a/b\.tar: the bucket is frozen\.$"),
        (LibraryError(), r"^Cannot read a/b\.tar: LibraryError\.$"),
    ],
)
def test_other_errors_are_told_in_their_own_words(error: Exception, told: str) -> None:
    with pytest.raises(DatasetError, match=told), explained("a/b.tar", "read"):
        raise error


def test_the_code_of_s3_is_told() -> None:
    """s3fs makes an error of the system of it."""
    exceptions = pytest.importorskip("botocore.exceptions", reason="no botocore to test with")
    translated = pytest.importorskip("s3fs.errors", reason="no s3fs to test with").translate_boto_error
    error = exceptions.ClientError({"Error": {"Code": "EntityTooSmall"}}, "CompleteMultipartUpload")
    with (
        pytest.raises(DatasetError, match=r"answers EntityTooSmall \(invalid argument\)\.$"),
        explained("s3://b/x", "write"),
    ):
        raise translated(error)


@pytest.mark.parametrize(
    ("error", "limit"),
    [(RuntimeError("can't start new thread"), "ulimit -u"), (OSError(errno.EMFILE, "-"), "ulimit -n")],
)
def test_a_limit_that_botocore_calls_a_broken_connection_is_named(error: Exception, limit: str) -> None:
    exceptions = pytest.importorskip("botocore.exceptions", reason="no botocore to test with")
    with pytest.raises(StreamvidError, match=limit), explained("s3://bucket/x", "read"):
        raise exceptions.HTTPClientError(error=error)


@pytest.mark.parametrize("name", ["ConnectError", "ReadTimeout", "RemoteProtocolError"])
def test_a_broken_connection_of_hugging_faces_client_is_asked_again(name: str) -> None:
    httpx = pytest.importorskip("httpx2", reason="no huggingface_hub to test with")
    with pytest.raises(StorageUnavailable, match=name), explained("hf://datasets/me/set/x", "read"):
        raise getattr(httpx, name)("[Errno -2] Name or service not known")


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"AWS_ENDPOINT_URL": "localhost:9000"}, "AWS_ENDPOINT_URL is no URL; write http://host:port or https://host"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:99999"}, "AWS_ENDPOINT_URL is no URL; write http://host:port or https"),
        ({"HTTP_PROXY": "me:geheim@127.0.0.1:9"}, r"dataset.json: HTTP_PROXY or HTTPS_PROXY is no URL; write http://"),
        ({"AWS_ENDPOINT_URL": "https://127.0.0.1:{port}"}, "not speak TLS; check AWS_ENDPOINT_URL: http:// or https"),
        ({"AWS_PROFILE": "mine"}, r"profile \(mine\) could not be found; check AWS_PROFILE and the AWS config file"),
        ({"HTTP_PROXY": "http://127.0.0.1:9"}, r"network and the proxy \(HTTP_PROXY, HTTPS_PROXY, NO_PROXY\)"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], told: str
) -> None:
    with serving(BaseHTTPRequestHandler) as port:  # it speaks neither TLS nor S3
        settings = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_CONFIG_FILE": os.devnull,
        } | {name: value.format(port=port) for name, value in variables.items()}
        for name in ("AWS_PROFILE", "NO_PROXY", "no_proxy", "HTTP_PROXY", "http_proxy"):
            monkeypatch.delenv(name, raising=False)
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()
        with pytest.raises((InputError, DatasetError), match=told):
            Dataset.open("s3://bucket/set", retry_for=0)


def test_an_address_that_is_no_url_is_not_called_a_proxy() -> None:
    url = "http://host:port/a"
    with pytest.raises(InputError) as error, explained(url, "read"):
        raise aiohttp.InvalidURL(url)
    assert "PROXY" not in str(error.value)
