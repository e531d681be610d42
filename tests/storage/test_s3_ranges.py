"""One chain of credentials, endpoint, addressing, CA bundle and proxy for reading, listing and writing: botocore's."""

from __future__ import annotations

import gc
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from streamvid.errors import InputError
from streamvid.storage import filesystem
from streamvid.storage.byte_range import ByteRange
from streamvid.storage.explain import AccessRefused
from streamvid.storage.range_reader import RangeReader
from streamvid.storage.retry import Retry
from tests.support.s3_server import forget_s3_connections
from tests.support.serving import Handler, serving

DATA = bytes(range(256)) * 40
WANTED = ByteRange("s3://lab-bucket/folder/object", 0, 100)
_KEY = re.compile(r"Credential=([A-Z0-9]+)(?:/|%2F)")


@dataclass
class Bucket:
    """A server of one object that notes of each request: method, target, Host, and the key that signed it."""

    port: int = 0
    seen: list[tuple[str, str, str, str]] = field(default_factory=list)
    accepted: Callable[[str], bool] = lambda _: True
    """Whether a key may read."""


class _Handler(Handler):
    bucket: Bucket

    def answer(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = _KEY.search(self.headers.get("Authorization", "") + self.path)
        key = found[1] if found else ""
        self.bucket.seen.append((self.command, self.path, self.headers["Host"], key))
        status, body, more = 200, DATA, {"ETag": '"1"'}
        if not self.bucket.accepted(key):
            status, body = 403, b"<Error><Code>ExpiredToken</Code></Error>"
        elif self.command == "DELETE":
            status, body = 204, b""
        elif "list-type" in self.path:
            entry = f"<Contents><Key>folder/object</Key><Size>{len(DATA)}</Size></Contents>"
            body = f"<ListBucketResult><KeyCount>1</KeyCount>{entry}</ListBucketResult>".encode()
        elif self.command == "PUT":
            body, more = b"", {"ETag": f'"{hashlib.md5(sent).hexdigest()}"'}
        elif span := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            status, body = 206, DATA[int(span[1]) : int(span[2]) + 1]
            more["Content-Range"] = f"bytes {span[1]}-{span[2]}/{len(DATA)}"
        self.send(status, body, {**more, "Last-Modified": "Sun, 22 Nov 2026 00:00:00 GMT"})


@pytest.fixture
def bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """The server, by TLS with a certificate of its own where a test asks for it; nothing of S3 in the environment."""
    pytest.importorskip("s3fs", reason="no s3fs to test with: pip install s3fs")
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower() in ("http_proxy", "https_proxy", "no_proxy", "requests_ca_bundle"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    certificate = None
    if getattr(request, "param", "") == "tls":
        if shutil.which("openssl") is None:
            pytest.skip("no openssl to make a certificate with")
        certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
        subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        files = ["-keyout", str(key), "-out", str(certificate)]
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
        subprocess.run(command, check=True, capture_output=True)
        (tmp_path / "server.pem").write_text(key.read_text() + certificate.read_text())
        certificate = tmp_path / "server.pem"
    found = Bucket()
    with serving(_Handler, certificate=certificate, bucket=found) as found.port:
        forget_s3_connections()
        yield found
        forget_s3_connections()


def configure(monkeypatch: pytest.MonkeyPatch, folder: Path, *lines: str) -> None:
    """A profile of this name, the one that is meant."""
    (folder / "config").write_text("\n".join(["[profile lab]", "region = us-east-1", *lines, ""]))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    monkeypatch.setenv("AWS_PROFILE", "lab")


def use(name: str = "lab-bucket") -> None:
    """Read a range, ask for a size, list, and write."""
    (block,) = RangeReader(Retry(0)).read([ByteRange(f"s3://{name}/folder/object", 100, 300)])
    assert block.tobytes() == DATA[100:300]
    assert filesystem.read_bytes(f"s3://{name}/folder/object", retry=Retry(0)) == DATA
    assert filesystem.size(f"s3://{name}/folder/object", retry=Retry(0)) == len(DATA)
    assert filesystem.list_files(f"s3://{name}/folder") == [f"s3://{name}/folder/object"]
    filesystem.write_bytes(f"s3://{name}/folder/new", b"new")


def kinds(bucket: Bucket) -> set[str]:
    return {"LIST" if "list-type" in target else method for method, target, _, _ in bucket.seen}


KEYS = ("aws_access_key_id = AKPROFILE", "aws_secret_access_key = hunter2")


def test_a_profile_has_keys_endpoint_and_path_style(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(
        monkeypatch,
        tmp_path,
        *KEYS,
        f"endpoint_url = http://localhost:{bucket.port}",
        "s3 =",
        "  addressing_style = path",
    )
    use()
    assert kinds(bucket) == {"GET", "HEAD", "LIST", "PUT"}
    assert {key for *_, key in bucket.seen} == {"AKPROFILE"}
    assert {host for _, _, host, _ in bucket.seen} == {f"localhost:{bucket.port}"}
    assert all(target.startswith("/lab-bucket") for _, target, _, _ in bucket.seen)


def test_a_proxy_is_used_for_all(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a name that nobody but the proxy knows; buckets are in the host's name, as by default."""
    configure(
        monkeypatch, tmp_path, *KEYS, "endpoint_url = http://storage.invalid", "s3 =", "  addressing_style = virtual"
    )
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{bucket.port}")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{bucket.port}")
    use()
    assert kinds(bucket) == {"GET", "HEAD", "LIST", "PUT"}
    assert all(target.startswith("http://lab-bucket.storage.invalid/") for _, target, _, _ in bucket.seen)


@pytest.mark.parametrize("bucket", ["tls"], indirect=True)
@pytest.mark.parametrize("by", ["variable", "profile"])
def test_a_bundle_of_certificates_is_used_for_all(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    lines = [*KEYS, f"endpoint_url = https://localhost:{bucket.port}", "s3 =", "  addressing_style = path"]
    configure(monkeypatch, tmp_path, *lines)
    once = Retry(0)
    ways = (lambda: RangeReader(once).read([WANTED]), lambda: filesystem.exists(WANTED.path, retry=once))
    for refused in (use, *ways):
        with pytest.raises(AccessRefused, match=r"its certificate is not trusted \(self-signed.*AWS_CA_BUNDLE"):
            refused()
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "bundle.pem"))
    if by == "profile":
        (tmp_path / "bundle.pem").write_text("no certificate")
    forget_s3_connections()
    for unreadable in ways:
        with pytest.raises(InputError, match=r"certificates .* cannot be read.*AWS_CA_BUNDLE"):
            unreadable()
    assert not bucket.seen  # nothing is sent to a server that nobody vouches for
    monkeypatch.delenv("AWS_CA_BUNDLE")
    forget_s3_connections()
    if by == "variable":
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "certificate.pem"))
    else:
        configure(monkeypatch, tmp_path, f"ca_bundle = {tmp_path / 'certificate.pem'}", *lines)
    use()
    assert kinds(bucket) == {"GET", "HEAD", "LIST", "PUT"}


def test_credentials_that_expire_are_refreshed_for_all(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that gives temporary credentials, as SSO and instance roles do; those of before are refused."""
    count, script = tmp_path / "count", tmp_path / "give.py"
    count.write_text("0")
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    script.write_text(
        f"import json, pathlib\npath = pathlib.Path({str(count)!r})\nn = int(path.read_text()) + 1\n"
        f"path.write_text(str(n))\nprint(json.dumps(dict(Version=1, AccessKeyId=f'AKTEMP{{n}}', "
        f"SecretAccessKey='hunter2', SessionToken='token', Expiration={soon!r})))\n"
    )
    lines = [f"credential_process = {sys.executable} {script}", f"endpoint_url = http://localhost:{bucket.port}"]
    configure(monkeypatch, tmp_path, *lines, "s3 =", "  addressing_style = path")
    reader = RangeReader(Retry(30, sleep=lambda _: False))
    wanted = [ByteRange("s3://lab-bucket/folder/object", 0, 100)]
    reader.read(wanted)
    (first,) = {key for *_, key in bucket.seen}
    bucket.accepted = lambda key: key != first  # expired
    bucket.seen.clear()
    assert reader.read(wanted)[0].tobytes() == DATA[:100]
    assert {key for *_, key in bucket.seen} > {first}
    bucket.seen.clear()
    use()
    later: Any = {key for *_, key in bucket.seen}
    assert first not in later


def test_commands_outlive_the_credentials_that_they_began_with(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of keys that is written anew, which botocore reads once: each call meets the keys of the one before."""
    calls: list[Callable[[], object]] = [
        lambda: filesystem.write_bytes("s3://lab-bucket/folder/new", b"new"),
        lambda: filesystem.create_bytes("s3://lab-bucket/folder/new", b"new"),
        lambda: filesystem.replace_bytes("s3://lab-bucket/folder/object", b"new", expected=DATA),
        lambda: filesystem.list_files("s3://lab-bucket/folder"),
        lambda: filesystem.list_details("s3://lab-bucket/folder"),
        lambda: filesystem.glob("s3://lab-bucket/folder/*"),
        lambda: filesystem.exists("s3://lab-bucket/folder/object"),
        lambda: filesystem.read_bytes("s3://lab-bucket/folder/object"),
        lambda: filesystem.get_file("s3://lab-bucket/folder/object", tmp_path / "object"),
        lambda: filesystem.put_file(tmp_path / "object", "s3://lab-bucket/folder/new"),
        lambda: filesystem.remove_file("s3://lab-bucket/folder/object"),
    ]
    lines = [f"endpoint_url = http://localhost:{bucket.port}", "s3 =", "  addressing_style = path"]
    configure(monkeypatch, tmp_path, "aws_access_key_id = AKFIRST", "aws_secret_access_key = hunter2", *lines)
    assert filesystem.exists(WANTED.path)
    for number, call in enumerate(calls):
        key = f"AKTEMP{number}"
        configure(monkeypatch, tmp_path, f"aws_access_key_id = {key}", "aws_secret_access_key = hunter2", *lines)
        bucket.accepted = key.__eq__
        call()
    bucket.accepted = lambda _: False
    with pytest.raises(AccessRefused):
        calls[0]()


def test_a_file_of_credentials_may_be_empty_for_a_moment(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is written anew. Where there were none from the beginning, nothing is waited for."""
    lines = [f"endpoint_url = http://localhost:{bucket.port}", "s3 =", "  addressing_style = path"]
    keys: list[list[str]] = [[], ["aws_access_key_id = AKNEW", "aws_secret_access_key = hunter2"]]
    retry = Retry(30, sleep=lambda _: configure(monkeypatch, tmp_path, *keys.pop(0), *lines))
    configure(monkeypatch, tmp_path, *KEYS, *lines)
    bucket.accepted = "AKNEW".__eq__
    assert RangeReader(retry).read([WANTED])[0].tobytes() == DATA[:100]
    assert not keys
    configure(monkeypatch, tmp_path, *lines)
    forget_s3_connections()
    with pytest.raises(AccessRefused, match="no credentials were found"):
        RangeReader(retry).read([WANTED])


def test_clients_of_credentials_that_were_refused_are_let_go(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each takes 25 MB, and in a run of weeks credentials expire hundreds of times."""
    lines = [f"endpoint_url = http://localhost:{bucket.port}", "s3 =", "  addressing_style = path"]
    caplog.set_level("CRITICAL", logger="streamvid")  # pytest keeps what is logged, and so the frames of its errors
    reader, clients = RangeReader(Retry(30, sleep=lambda _: False)), []
    for number in range(4):
        key = f"AKTEMP{number}"
        configure(monkeypatch, tmp_path, f"aws_access_key_id = {key}", "aws_secret_access_key = hunter2", *lines)
        bucket.accepted = key.__eq__
        assert reader.read([WANTED])[0].tobytes() == DATA[:100]
        gc.collect()
        clients.append(sum(type(made).__module__ == "aiobotocore.client" for made in gc.get_objects()))
    assert clients[-1] <= clients[1]
