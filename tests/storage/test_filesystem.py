"""storage: local files, errors in plain words, and the same calls against a real S3 server."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
from fsspec import AbstractFileSystem

from streamvid.errors import DatasetError, InputError
from streamvid.storage import client, filesystem
from streamvid.storage.explain import AccessRefused, StorageUnavailable
from streamvid.storage.ranges import read_ranges
from streamvid.storage.retry import Retry
from streamvid.storage.url import AnyPath, given_path, is_local, join, redact
from tests.support.faulty_s3 import FaultyS3
from tests.support.s3_server import S3Server, forget_s3_connections
from tests.support.serving import free_port


def one_sentence(error: BaseException) -> str:
    """The error's text, checked to be one line that ends like a sentence."""
    text = str(error)
    assert "\n" not in text
    assert text.endswith(".")
    assert len(text) < 500
    return text


@pytest.fixture
def closed_port() -> int:
    """A port where nothing listens."""
    return free_port()


# --- names


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("/data/x", True),
        ("x", True),
        ("file:///data/x", True),
        ("/data/a::b/c", True),
        ("odd::name", True),
        (Path("x"), True),
        ("s3://bucket/x", False),
        ("http://host/x", False),
        ("simplecache::s3://bucket/x", False),
    ],
)
def test_is_local(path: AnyPath, local: bool) -> None:
    assert is_local(path) is local


@pytest.mark.parametrize(
    "url",
    ["http://[::1]:8000/x.mp4", "https://host/a::b.mp4", "https://host/x?part=1::2", "https://host/x?of=a::https://b"],
)
def test_two_colons_in_a_url_are_no_chain(url: str) -> None:
    """As of fsspec's `simplecache::https://…`."""
    fs, name = client.locate(url)
    assert name == url
    assert type(fs).__name__ == "HTTPFileSystem"
    assert type(client.locate("simplecache::https://host/x.mp4")[0]).__name__ == "SimpleCacheFileSystem"


def test_places_joined_by_two_colons_are_refused() -> None:
    """fsspec would open the first alone."""
    for url in ("s3://bucket/a.tar::s3://bucket/b.tar", "https://host/a.tar::https://host/b.tar"):
        with pytest.raises(InputError, match="several places, joined by ::"):
            client.locate(url)


def test_join() -> None:
    assert join("s3://bucket/ds", "shards", "0.tar") == "s3://bucket/ds/shards/0.tar"
    assert join("s3://bucket/", "x") == "s3://bucket/x"
    assert join(Path("/data"), "x") == "/data/x"
    assert join("/", "x") == "/x"


@pytest.mark.parametrize(
    ("url", "redacted"),
    [
        ("https://me:pa@ss@host/x", "https://***@host/x"),
        ("s3://AKIA:abc/def", "s3://AKIA:abc/def"),
        ("s3://key:secret@bucket/x", "s3://***@bucket/x"),
        ("s3://bucket/a@b.mp4", "s3://bucket/a@b.mp4"),
        ("http://h/x?key=abc&part=2&secret=def#f", "http://h/x?key=***&part=2&secret=***#f"),
        (
            "http://h/x?X-Amz-Security-Token=a%2Fb&X-Amz-Signature=0f",
            "http://h/x?X-Amz-Security-Token=***&X-Amz-Signature=***",
        ),
        ("http://h/x?AWSAccessKeyId=AKIA&TOKEN=t", "http://h/x?AWSAccessKeyId=***&TOKEN=***"),
        ("see http://u:p@h/x and http://v@h/y?sig=1", "see http://***@h/x and http://***@h/y?sig=***"),
        ("/data/key=5/x.mp4", "/data/key=5/x.mp4"),
    ],
)
def test_redact(url: str, redacted: str) -> None:
    assert redact(url) == redacted


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "dataset must be a path or URL; it is None"), (b"/x", "dataset must be a path or URL"),
        ("", "dataset is an empty path"), ("  ", "dataset is an empty path"),
        ("~/x", r"dataset ~/x: only a shell replaces ~ by the home folder; write /.*/x"),
        ("s3:/bucket/x", "dataset s3:/bucket/x: a URL has two slashes; write s3://bucket/x"),
        ("s3://", "names no bucket: write s3://BUCKET/FOLDER"), ("gs:///x", "names no bucket"),
        ("https:///x", "names no host: write https://HOST/PATH"),
        ("file://localhost/x", "dataset file://localhost/x: a URL of a file has three slashes; write file:///x$"),
        ("file://x/y", "write file:///x/y$"),
    ],
)  # fmt: skip
def test_paths_that_mean_something_else_are_refused(given: object, said: str) -> None:
    """Each would be a folder below the current one, or fail far from here."""
    with pytest.raises(InputError, match=said):
        given_path(given, "dataset")


@pytest.mark.parametrize(
    "given", [".", "a:b/c", "file:/x", "file:///x", "file://./x", "x~", "~x", "s3://b", "s3://b/x", "memory://x"]
)
def test_other_paths_are_taken_as_they_are(given: str) -> None:
    assert given_path(given, "dataset") == given


def test_s3fs_is_imported_only_when_used(tmp_path: Path) -> None:
    script = (
        "import sys; from streamvid.storage import filesystem, shard_cache; filesystem.write_bytes(sys.argv[1], b'x'); "
        "assert filesystem.read_bytes(sys.argv[1]) == b'x'; assert not {'s3fs', 'botocore'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "x")], check=True)


# --- local files


def test_local_round_trip(tmp_path: Path) -> None:
    path = join(tmp_path, "new", "a::b [1].bin")
    assert not filesystem.exists(path)
    filesystem.write_bytes(path, b"hello")
    assert filesystem.exists(path)
    assert filesystem.exists(tmp_path / "new")
    assert filesystem.size(path) == 5
    assert filesystem.read_bytes(path) == b"hello"
    filesystem.write_bytes(path, b"again")
    filesystem.get_file(f"file://{path}", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == b"again"
    assert filesystem.list_files(tmp_path, recursive=True) == [str(tmp_path / "back"), path]
    assert filesystem.list_files(tmp_path) == [str(tmp_path / "back")]
    assert filesystem.glob(tmp_path / "**" / "*b*") == [str(tmp_path / "back"), path]
    assert filesystem.glob(tmp_path / "*.none") == []


def test_local_write_leaves_the_old_file_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    filesystem.write_bytes(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DatasetError, match="disk is full") as error:
        filesystem.write_bytes(path, b"new")
    one_sentence(error.value)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_local_files_are_readable_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        filesystem.write_bytes(tmp_path / "x", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644


def check_ranges(folder: str, other: str) -> None:
    """Ranges of files in both places, in the order asked for."""
    filesystem.write_bytes(f"{folder}/a", bytes(range(100)))
    filesystem.write_bytes(f"{other}/b", b"hello")
    wanted = [(f"{folder}/a", 10, 13), (f"{other}/b", 1, 4), (f"{folder}/a", 90, 200), (f"{folder}/a", 0, 1)]
    assert read_ranges(wanted, retry=Retry(0)) == [b"\x0a\x0b\x0c", b"ell", bytes(range(90, 100)), b"\0"]
    assert read_ranges([], retry=Retry(0)) == []
    with pytest.raises(DatasetError, match=r"Cannot read .*missing: it does not exist"):
        read_ranges([(f"{folder}/a", 0, 1), (f"{folder}/missing", 0, 1)], retry=Retry(0))


def test_ranges_of_local_and_remote_files(tmp_path: Path) -> None:
    check_ranges(str(tmp_path), "memory://ranges")
    check_ranges("memory://ranges", str(tmp_path / "b"))


def test_s3_ranges(s3_bucket: str, tmp_path: Path) -> None:
    check_ranges(f"s3://{s3_bucket}/ranges", str(tmp_path))


def test_empty_folder_and_missing_folder(tmp_path: Path) -> None:
    assert filesystem.list_files(tmp_path) == []
    with pytest.raises(DatasetError, match="does not exist"):
        filesystem.list_files(tmp_path / "none")


def test_local_errors(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    cases: list[tuple[Callable[[], object], type[Exception], str]] = [
        (
            lambda: filesystem.read_bytes(tmp_path / "none"),
            DatasetError,
            f"Cannot read {tmp_path}/none: it does not exist",
        ),
        (lambda: filesystem.size(tmp_path / "none"), DatasetError, "does not exist"),
        (lambda: filesystem.read_bytes(tmp_path), DatasetError, "is a folder"),
        (lambda: filesystem.size(tmp_path), DatasetError, "is a folder"),
        (lambda: filesystem.read_bytes(tmp_path / "file" / "x"), DatasetError, "a part of the path is a file"),
        (lambda: filesystem.write_bytes(tmp_path / "file" / "x", b""), DatasetError, "a part of the path is a file"),
        (lambda: filesystem.read_bytes("a\0b"), InputError, "null"),
        (lambda: filesystem.read_bytes(""), InputError, "An empty path"),
    ]
    for call, kind, words in cases:
        with pytest.raises(kind) as error:
            call()
        assert words in one_sentence(error.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_local_permission(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"")
    path.chmod(0)
    with pytest.raises(DatasetError, match="permission denied") as error:
        filesystem.read_bytes(path)
    one_sentence(error.value)


# --- remote errors that need no server


@pytest.mark.parametrize("url", ["reference://me:hunter2@x/y", "dir://me:hunter2@x/y", "generic://x"])
def test_storages_that_a_url_alone_does_not_open(url: str) -> None:
    with pytest.raises(InputError, match=r"fsspec opens no .*:// by its URL alone; use a local path") as error:
        filesystem.read_bytes(url)
    assert "hunter2" not in str(error.value)


def test_links_that_lead_to_themselves(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(DatasetError, match="too many levels of symbolic links; check the path") as error:
        filesystem.read_bytes(tmp_path / "loop")
    one_sentence(error.value)


def test_unknown_protocol() -> None:
    with pytest.raises(InputError, match="'nope' is not a known protocol") as error:
        filesystem.read_bytes("nope://me:hunter2@x/y")
    assert "hunter2" not in one_sentence(error.value)
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__


def test_missing_package() -> None:
    script = "import sys; sys.modules['s3fs'] = None; from streamvid.storage import filesystem; filesystem.read_bytes('s3://bucket/x')"
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("streamvid.errors.InputError: Cannot read s3://bucket/x: ")
    assert "s3:// needs a Python package that is missing: pip install s3fs" in last


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("data://x/y", "data:// names no storage; use a local path, s3://, "),
        ("zip://x/y", "zip:// names no storage; use a local path, s3://, "),
        ("simplecache://x/y", "simplecache:// names no storage; use a local path, s3://, "),
        ("wrapper://x/y", "fsspec opens no wrapper:// by its URL alone"),
        ("dask://x/y", "dask:// needs a Python package that is missing: pip install dask"),
        ("smb://x/y", "smb:// needs a Python package that is missing: pip install smbprotocol"),
        ("hdfs://x/y", "hdfs:// needs Java and Hadoop's libraries: set JAVA_HOME"),
    ],
)
def test_urls_that_name_no_storage_or_one_that_is_not_installed(
    url: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("dask", "smbclient"):
        monkeypatch.setitem(sys.modules, name, None)

    class Wrapper(AbstractFileSystem):  # type: ignore[misc]  # as some of fsspec's, which only code can give another
        def __init__(self, fs: AbstractFileSystem, **_: object) -> None: ...

    fsspec.register_implementation("wrapper", Wrapper, clobber=True)
    if url.startswith("hdfs"):  # as pyarrow says it without Java

        def connect(**_: object) -> None:
            raise OSError("Unable to load libjvm: dlopen(/usr/lib/jvm/default-java/libjvm.so) failed")

        monkeypatch.setattr("pyarrow.fs.HadoopFileSystem", connect)
    with pytest.raises(InputError, match=re.escape(words)) as error:
        filesystem.read_bytes(url)
    assert "\n" not in str(error.value)
    if "wrapper" not in url:
        with pytest.raises(InputError, match=re.escape(words)):
            filesystem.write_bytes(url, b"")


def test_programming_errors_are_raised_unchanged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(_: AnyPath) -> None:
        raise AttributeError("a defect")

    monkeypatch.setattr(filesystem, "locate", broken)
    with pytest.raises(AttributeError):
        filesystem.read_bytes(tmp_path)


def test_http_server_down(closed_port: int) -> None:
    url = f"http://me:hunter2@127.0.0.1:{closed_port}/x?token=abc"
    for call in (filesystem.read_bytes, filesystem.size, filesystem.exists):
        with pytest.raises(StorageUnavailable, match="cannot be reached") as error:
            call(url)
        text = one_sentence(error.value)
        assert "hunter2" not in text
        assert "abc" not in text


def test_s3_server_down(closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed_port}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # else botocore tries for seconds, each time that s3fs tries
    forget_s3_connections()
    try:
        with pytest.raises(StorageUnavailable, match="AWS_ENDPOINT_URL") as error:
            filesystem.read_bytes("s3://bucket/x")
        assert "hunter2" not in one_sentence(error.value)
    finally:
        forget_s3_connections()


# --- a real S3 server


def test_s3_round_trip(s3_bucket: str, tmp_path: Path) -> None:
    base = f"s3://{s3_bucket}/round trip"
    path = join(base, "shards", "0.tar")
    assert not filesystem.exists(path)
    with pytest.raises(DatasetError, match="does not exist"):
        filesystem.list_files(base)
    filesystem.write_bytes(path, b"hello")
    assert filesystem.exists(path)
    assert filesystem.exists(base)
    assert (filesystem.size(path), filesystem.read_bytes(path)) == (5, b"hello")
    # What was read or listed before is not remembered.
    assert filesystem.list_files(base) == []
    filesystem.write_bytes(path, b"longer than before")
    filesystem.write_bytes(join(base, "dataset.json"), b"{}")
    assert (filesystem.size(path), filesystem.read_bytes(path)) == (18, b"longer than before")
    assert filesystem.list_files(base) == [join(base, "dataset.json")]
    assert filesystem.list_files(base, recursive=True) == [join(base, "dataset.json"), path]
    assert filesystem.glob(join(base, "*", "*.tar")) == [path]


def test_s3_large_file_in_parts(s3_bucket: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(2**20) * 20)  # more than two ranges
    url = f"s3://{s3_bucket}/large"
    filesystem.put_file(source, url)
    assert filesystem.size(url) == 20 * 2**20
    filesystem.get_file(url, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


def test_s3_sees_what_another_process_writes(s3_bucket: str, forked_python: Path) -> None:
    base = f"s3://{s3_bucket}/others"
    filesystem.write_bytes(join(base, "a"), b"1")
    assert len(filesystem.list_files(base)) == 1
    script = "import sys; from streamvid.storage import filesystem; filesystem.write_bytes(sys.argv[1], b'12')"
    for name in ("a", "b"):
        subprocess.run([forked_python, "-c", script, join(base, name)], check=True)
    assert filesystem.list_files(base) == [join(base, "a"), join(base, "b")]
    assert filesystem.size(join(base, "a")) == 2


def test_s3_missing(s3_bucket: str, tmp_path: Path) -> None:
    cases = [
        (f"s3://{s3_bucket}/none", "it does not exist"),
        (f"s3://{s3_bucket}-none/x", "does not exist|no such bucket"),
    ]
    for url, words in cases:
        for call in (
            filesystem.read_bytes,
            filesystem.size,
            lambda u: filesystem.get_file(u, tmp_path / "x"),
        ):
            with pytest.raises(DatasetError, match=words) as error:
                call(url)
            assert url in one_sentence(error.value)
    with pytest.raises(DatasetError, match="no such bucket") as error:
        filesystem.write_bytes(f"s3://{s3_bucket}-none/x", b"")
    one_sentence(error.value)
    assert not filesystem.exists(f"s3://{s3_bucket}-none/x")
    for url in ("s3://not a bucket/x", f"s3://{s3_bucket}"):
        with pytest.raises(InputError, match="write s3://bucket/path") as invalid:
            filesystem.read_bytes(url)
        one_sentence(invalid.value)


@pytest.fixture(params=["wrong secret", "wrong key", "no credentials"])
def refused(request: pytest.FixtureRequest, s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A URL that exists, and an environment in which the server refuses it."""
    url = f"s3://{s3_bucket}/refused"
    filesystem.write_bytes(url, b"x")
    if request.param == "wrong secret":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2hunter2")
    elif request.param == "wrong key":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "hunter2hunter2")
    else:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    forget_s3_connections()
    yield url
    forget_s3_connections()


def test_s3_refused_credentials(refused: str, s3_server: S3Server, tmp_path: Path) -> None:
    calls: list[Callable[[str], object]] = [
        filesystem.read_bytes,
        filesystem.size,
        filesystem.exists,
        filesystem.list_files,
        lambda url: filesystem.write_bytes(url, b""),
        lambda url: filesystem.get_file(url, tmp_path / "x"),
    ]
    for call in calls:
        with pytest.raises(DatasetError, match="credentials") as error:
            call(refused)
        text = one_sentence(error.value)
        assert not isinstance(error.value, StorageUnavailable)
        assert refused in text
        assert "AWS_SECRET_ACCESS_KEY" in text
        assert "hunter2" not in text
        assert s3_server.secret not in text


def test_bucket_environment_reaches_child_processes(s3_bucket: str) -> None:
    filesystem.write_bytes(f"s3://{s3_bucket}/child", b"seen")
    script = "import sys; from streamvid.storage import filesystem; print(filesystem.read_bytes(sys.argv[1]).decode())"
    done = subprocess.run(
        [sys.executable, "-c", script, f"s3://{s3_bucket}/child"], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "seen"


def test_s3_after_fork(s3_bucket: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # s3fs tries again itself, and says so in its log
    forget_s3_connections()
    url = f"s3://{s3_bucket}/fork"
    filesystem.write_bytes(url, b"x")  # the parent has an event loop and connections now
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if filesystem.read_bytes(url) == b"x" and filesystem.list_files(f"s3://{s3_bucket}") else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with caplog.at_level(logging.DEBUG, logger="s3fs"):
        assert filesystem.read_bytes(url) == b"x"
    assert "Retryable" not in caplog.text  # the child has not closed the parent's connections


@pytest.mark.parametrize("retry", [None, Retry(1)])
def test_details_where_s3_refuses_head(site: FaultyS3, retry: Retry | None) -> None:
    site.objects = {"bucket/a/x": b"12345", "bucket/a/empty": b""}
    names = ("a/x", "a", "a/none", "none", "a/empty")

    def found() -> list[filesystem.Details | None]:
        return [filesystem.details(f"s3://bucket/{name}", retry=retry) for name in names]

    *expected, empty = found()
    assert [None if file is None else (file.size, file.is_folder) for file in expected] == [
        (5, False), (0, True), None, None,
    ]  # fmt: skip
    assert empty is not None
    site.fault = lambda method, key, before: "403" if method == "HEAD" else None
    assert found() == [*expected, replace(empty, mark="")]
    assert filesystem.list_files("s3://bucket/a/x") == ["s3://bucket/a/x"]
    assert filesystem.read_bytes("s3://bucket/a/x", retry=retry) == b"12345"
    site.fault = lambda *_: "403"
    with pytest.raises(AccessRefused):
        found()


@pytest.mark.parametrize("conditions", ["kept", "ignored", "refused"])
def test_a_file_that_exists_is_not_made_by_servers_without_conditions(site: FaultyS3, conditions: str) -> None:
    """One that ignored them replaced a shard's file that another writer had reserved; one that refused them was said to
    be overloaded, and could not be packed to."""
    site.conditions = conditions
    assert filesystem.create_bytes("s3://bucket/a", b"one")
    assert not filesystem.create_bytes("s3://bucket/a", b"two")
    assert site.objects["bucket/a"] == b"one"
    assert not filesystem.replace_bytes("s3://bucket/a", b"two", expected=b"other")
    assert filesystem.replace_bytes("s3://bucket/a", b"two", expected=b"one")
    assert site.objects["bucket/a"] == b"two"
