"""What storage errors are told as."""

from __future__ import annotations

import errno

import pytest

from streamvid.errors import DatasetError
from streamvid.storage.explain import StorageUnavailable, explained


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
        (LibraryError("the bucket\nis frozen."), r"^Cannot read a/b\.tar: the bucket is frozen\.$"),
        (LibraryError(), r"^Cannot read a/b\.tar: LibraryError\.$"),
    ],
)
def test_other_errors_are_told_in_their_own_words(error: Exception, told: str) -> None:
    with pytest.raises(DatasetError, match=told), explained("a/b.tar", "read"):
        raise error


@pytest.mark.parametrize("name", ["ConnectError", "ReadTimeout", "RemoteProtocolError"])
def test_a_broken_connection_of_hugging_faces_client_is_asked_again(name: str) -> None:
    httpx = pytest.importorskip("httpx2", reason="no huggingface_hub to test with")
    with pytest.raises(StorageUnavailable, match=name), explained("hf://datasets/me/set/x", "read"):
        raise getattr(httpx, name)("[Errno -2] Name or service not known")
