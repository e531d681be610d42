"""Fixtures for tests against a real S3 server: a Ceph RGW of one node, which checks signatures as a mock would not.

Every session starts a server of its own on a free port, by tools/s3/up.sh, and stops it. A server that a killed session
left behind is stopped by the next one. Where STREAMVID_S3_PORT is set, the server on that port is used as it is.
Loaded by `pytest_plugins` in tests/conftest.py.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streamvid.storage import client
from tests.support.serving import free_port

_TOOLS = Path(__file__).parents[2] / "tools" / "s3"
_PORT = "STREAMVID_S3_PORT"
_PREFIX = "streamvid-s3-"
_OWNER = "owner.pid"
"""In a server's folder: the process id of the session that started it."""
_CLUSTER = "ceph"


@dataclass(frozen=True)
class S3Server:
    """An S3 server on this machine and the credentials that it takes."""

    endpoint: str
    key: str = "svkey"
    secret: str = "svsecret"  # of a server that listens on 127.0.0.1 alone

    def environment(self) -> dict[str, str]:
        """Environment variables by which s3fs, DALI and AWS tools, also in child processes, use only this server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            # Nothing of the developer's own account, and no waiting for a metadata service that is not there.
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def filesystem(self) -> Any:
        """An s3fs file system with these credentials, whatever the environment says."""
        import s3fs

        return s3fs.S3FileSystem(key=self.key, secret=self.secret, endpoint_url=self.endpoint, use_listings_cache=False)


@contextlib.contextmanager
def s3_environment(server: S3Server) -> Iterator[None]:
    """Set the server's environment variables, as child processes see them too, and restore them after."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
            patch.delenv(name, raising=False)
        for name, value in server.environment().items():
            patch.setenv(name, value)
        _keep_models()
        forget_s3_connections()
        try:
            yield
        finally:
            forget_s3_connections()


def _keep_models() -> None:
    """Let botocore read its models of S3, some megabytes of JSON, once in a process: it does so for every client, and
    nearly every test has one of its own. That is 0.1 s."""
    with contextlib.suppress(ImportError):
        from botocore.loaders import JSONFileLoader

        if not hasattr(JSONFileLoader.load_file, "__wrapped__"):
            load = functools.cache(functools.partial(JSONFileLoader.load_file, JSONFileLoader()))
            JSONFileLoader.load_file = functools.wraps(JSONFileLoader.load_file)(lambda _, path: load(path))


def forget_s3_connections() -> None:
    """Make fsspec read the environment again: it keeps file systems, and with them the credentials of their making.
    A client takes megabytes."""
    if "s3fs" in sys.modules:
        sys.modules["s3fs"].S3FileSystem.clear_instance_cache()
        client._kept.clear()


@contextlib.contextmanager
def s3_test_bucket(server: S3Server) -> Iterator[str]:
    """A new bucket, by name; emptied and removed after."""
    fs = server.filesystem()
    name = f"streamvid-{uuid.uuid4().hex}"
    fs.call_s3("create_bucket", Bucket=name)  # mkdir would name a region, which this server has none of
    try:
        yield name
    finally:
        fs.rm(name, recursive=True)


class _OwnServer:
    """A server of this session on a free port. It takes some 15 s to come up, in which other tests run."""

    def __init__(self) -> None:
        # Not pytest's own temporary folders: their names can be too long for Ceph's sockets.
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        (self._folder / _OWNER).write_text(str(os.getpid()))
        port = str(free_port())
        self.server = S3Server(f"http://127.0.0.1:{port}")
        # Daemons inherit no pipe: a file, as the end of a pipe's output would be the end of the server.
        with (self._folder / "start.log").open("w") as log:
            self._starting = subprocess.Popen(
                [_TOOLS / "up.sh", self._folder / _CLUSTER],
                env={**os.environ, "STREAMVID_S3_PORT": port},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is for pytest, which stops the server
            )

    def wait(self) -> S3Server:
        """Wait until it is up."""
        if self._starting.wait():
            pytest.fail(f"tools/s3/up.sh failed:\n{(self._folder / 'start.log').read_text()}")
        return self.server

    def stop(self) -> None:
        """Stop it, also while it is coming up."""
        self._starting.terminate()
        self._starting.wait()
        _stop(self._folder)


def _stop(folder: Path) -> None:
    subprocess.run([_TOOLS / "down.sh", folder / _CLUSTER], capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)


def _stop_orphans() -> None:
    """Stop the servers of sessions that were killed, and remove their folders."""
    for owner in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_OWNER}"):
        with contextlib.suppress(OSError, ValueError):
            if owner.stat().st_uid == os.getuid() and not Path(f"/proc/{int(owner.read_text())}").exists():
                _stop(owner.parent)


_OWN: pytest.StashKey[_OwnServer] = pytest.StashKey()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start a server as soon as it is known that a test needs one."""
    if session.config.option.collectonly or _PORT in os.environ or not shutil.which("radosgw"):
        return
    if any("s3_server" in getattr(item, "fixturenames", ()) for item in session.items):
        _stop_orphans()
        session.config.stash[_OWN] = _OwnServer()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop it."""
    if (own := config.stash.get(_OWN, None)) is not None:
        own.stop()


@pytest.fixture(scope="session")
def s3_server(pytestconfig: pytest.Config) -> S3Server:
    """The server on STREAMVID_S3_PORT, or this session's own. Skips where Ceph is not installed."""
    pytest.importorskip("s3fs", reason="no s3fs to test with: pip install s3fs")
    if _PORT in os.environ:
        return S3Server(f"http://127.0.0.1:{os.environ[_PORT]}")
    if (own := pytestconfig.stash.get(_OWN, None)) is None:
        pytest.skip("no S3 server to test with: install Ceph's with `sudo tools/s3/install.sh`")
    return own.wait()


@pytest.fixture(scope="module")
def s3_bucket(s3_server: S3Server) -> Iterator[str]:
    """The name of a bucket for the tests of a module, with the environment variables that reach it set meanwhile."""
    with s3_environment(s3_server), s3_test_bucket(s3_server) as name:
        yield name
