"""Byte ranges of local files: the right bytes, and an error that names the file where one is short or gone."""

from __future__ import annotations

import errno
import gc
import itertools
import math
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.errors import DatasetError
from streamvid.storage import byte_range, range_reader
from streamvid.storage.byte_range import PART_BYTES, WASTE, ByteRange, FileVersion, join
from streamvid.storage.explain import StorageUnavailable
from streamvid.storage.range_reader import FileTooShort, LocalReads, RangeReader
from streamvid.storage.retry import Retry
from tests.support.clock import Clock
from tests.support.open_files import open_files

SIZES = (5000, 512, 70_000)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("read") / "a folder with spaces"
    folder.mkdir()
    rng = np.random.default_rng(0)
    paths = []
    for number, size in enumerate(SIZES):
        paths.append(folder / f"{number}.tar")
        paths[-1].write_bytes(rng.integers(0, 256, size, dtype=np.uint8).tobytes())
    return paths


def check(ranges: list[ByteRange]) -> None:
    got = RangeReader().read(ranges)
    assert len(got) == len(ranges)
    for block, one in zip(got, ranges, strict=True):
        assert block.dtype == np.uint8
        assert block.tobytes() == Path(one.path).read_bytes()[one.start : one.end]


@given(
    st.lists(
        st.integers(0, 2).flatmap(
            lambda file: st.tuples(st.just(file), st.integers(0, SIZES[file] - 1), st.integers(1, SIZES[file]))
        ),
        min_size=1,
        max_size=20,
    )
)
def test_any_ranges_in_any_order(files: list[Path], wanted: list[tuple[int, int, int]]) -> None:
    """Unaligned, overlapping, repeated, across files."""
    check([ByteRange(str(files[file]), start, min(start + size, SIZES[file])) for file, start, size in wanted])


def test_whole_files_and_single_bytes(files: list[Path]) -> None:
    check([ByteRange(str(path), 0, size) for path, size in zip(files, SIZES, strict=True)])
    check([ByteRange(str(path), at, at + 1) for path in files for at in (0, 511)])
    check([ByteRange(str(files[0]), at, at + 1) for at in (SIZES[0] - 1, 512, 511, 1023, 1024)])
    check([ByteRange(str(files[1]), 0, 512)] * 3)


def test_hundreds_of_ranges_of_a_file(files: list[Path]) -> None:
    rng = np.random.default_rng(1)
    starts = rng.integers(0, SIZES[2] - 100, 700)
    check([ByteRange(str(files[2]), int(start), int(start) + 100) for start in starts])


def test_no_ranges_give_no_blocks() -> None:
    assert RangeReader().read([]) == []


def test_blocks_do_not_share_memory_with_each_other(files: list[Path]) -> None:
    one, two = RangeReader().read([ByteRange(str(files[0]), 0, 100)] * 2)
    one[:] = 0
    assert two.tobytes() == files[0].read_bytes()[:100]


def test_a_missing_file(files: list[Path], tmp_path: Path) -> None:
    reader = RangeReader()
    with pytest.raises(DatasetError, match=r"gone\.tar cannot be opened .No such file") as error:
        reader.read([ByteRange(str(files[0]), 0, 10), ByteRange(str(tmp_path / "gone.tar"), 0, 10)])
    assert "\n" not in str(error.value)
    assert len(reader.read([ByteRange(str(files[0]), 0, 10)])[0]) == 10


def test_a_file_that_shrinks_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "shrinks.tar"
    path.write_bytes(bytes(1000))
    reader = RangeReader()
    reader.read([ByteRange(str(path), 0, 1000)])
    path.write_bytes(bytes(500))
    with pytest.raises(DatasetError, match=r"shrinks\.tar ends before byte 1000"):
        reader.read([ByteRange(str(path), 0, 1000)])


def test_files_are_read_from_front_to_back(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    preadv = os.preadv

    def spied(descriptor: int, buffers: Any, offset: int) -> int:
        asked.append((descriptor, offset))
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", spied)
    wanted = [ByteRange(str(files[n % 2]), start, start + 10) for n, start in enumerate((400, 300, 30, 20, 100))]
    check(wanted)
    assert len({descriptor for descriptor, _ in asked}) == 2
    assert asked == sorted(asked, key=lambda one: (one[0] != asked[0][0], one[1]))


def test_open_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "MAX_OPEN_FILES", 3)
    paths = [tmp_path / f"{n}.tar" for n in range(8)]
    for path in paths:
        path.write_bytes(path.name.encode())
    reader = RangeReader()
    read = reader.read([ByteRange(str(path), 0, 5) for path in paths])
    assert [block.tobytes().decode() for block in read] == [path.name for path in paths]
    names = {str(path) for path in paths}
    assert len(open_files() & names) == 3
    del reader
    assert not open_files() & names


SHORT = """
import sys
from streamvid.errors import DatasetError
from streamvid.storage.byte_range import ByteRange
from streamvid.storage.range_reader import RangeReader
path, keep = sys.argv[1], int(sys.argv[2])
with open(path, "r+b") as file:
    file.truncate(keep)
for start, end in ((0, 4096), (3000, 60_000), (65_000, 66_000), (69_999, 70_000)):
    try:
        blocks = RangeReader().read([ByteRange(path, start, end)])
    except DatasetError as error:
        assert path in str(error) and "\\n" not in str(error), error
        print("refused")
    else:
        assert len(blocks[0]) == end - start
        print("read")
"""


@pytest.mark.parametrize(
    ("keep", "said"), [(0, 4 * ["refused"]), (1000, 4 * ["refused"]), (65_500, ["read", "read", "refused", "refused"])]
)
def test_a_truncated_file_is_an_error_and_no_crash(keep: int, said: list[str], tmp_path: Path) -> None:
    path = tmp_path / "short.tar"
    path.write_bytes(bytes(70_000))
    done = subprocess.run(
        [sys.executable, "-c", SHORT, str(path), str(keep)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == said


def test_a_file_that_outlives_the_modules_is_closed_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its end Python sets the names in modules to None. What a destructor raises, pytest takes for an error."""
    path = tmp_path / "file"
    path.write_bytes(b"x")
    reader = RangeReader()
    reader.read([ByteRange(str(path), 0, 1)])
    with monkeypatch.context() as patch:
        patch.setattr(range_reader, "os", None)
        del reader
        gc.collect()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # of a thread of a test before
            assert os.readlink(f"/proc/self/fd/{descriptor}") != str(path)


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 400), st.integers(0, 60)), min_size=1, max_size=30),
    st.integers(0, 50),
)
def test_joined_ranges_hold_all_and_little_more(wanted: list[tuple[int, int, int]], gap: int) -> None:
    ranges = [ByteRange(str(file), start, start + size) for file, start, size in wanted]
    joined, places = join(ranges, gap=gap)
    for one, n in zip(ranges, places, strict=True):
        assert joined[n].path == one.path
        assert joined[n].start <= one.start <= one.end <= joined[n].end
    asked = sum(one.end - one.start for one in joined)
    distinct = len({(one.path, byte) for one in ranges for byte in range(one.start, one.end)})
    assert distinct <= asked <= distinct * (1 + WASTE)
    assert len(joined) <= len(ranges)
    for a, b in itertools.pairwise(joined):
        assert a.path < b.path or a.end < b.start or a.start == a.end or b.start == b.end


def test_neighbours_are_joined_the_closest_first() -> None:
    def of(*parts: tuple[int, int]) -> list[tuple[int, int]]:
        joined, _ = join([ByteRange("x", a, b) for a, b in parts], gap=100)
        return [(one.start, one.end) for one in joined]

    assert of((0, 1000), (1000, 2000)) == [(0, 2000)]
    assert of((3000, 4000), (0, 1000), (1090, 2000)) == [(0, 2000), (3000, 4000)]
    # 15 % of 3,000 bytes: the gaps of 50 and 60, and not the one of 400.
    assert of((0, 1000), (1060, 2000), (2050, 3000)) == [(0, 3000)]
    assert of((0, 100), (105, 200), (214, 300)) == [(0, 300)]
    assert of((0, 100), (105, 200), (290, 300)) == [(0, 200), (290, 300)]
    part = PART_BYTES
    assert of((0, part), (part, part + 9)) == [(0, part), (part, part + 9)]


def test_long_ranges_of_remote_files_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    for module in (byte_range, range_reader):
        monkeypatch.setattr(module, "PART_BYTES", 100)
    data = np.random.default_rng(0).bytes(1000)
    fsspec.filesystem("memory").pipe_file("/parts", data)
    asked = []
    reader = RangeReader()
    read = reader.remote.read
    monkeypatch.setattr(
        reader.remote, "read", lambda wanted, **options: (asked.extend(wanted), read(wanted, **options))[1]
    )
    spans = [(3, 980), (990, 1000), (500, 500), (600, 700)]
    blocks = reader.read([ByteRange("memory://parts", a, b) for a, b in spans])
    assert [block.tobytes() for block in blocks] == [data[a:b] for a, b in spans]
    assert all(end - start <= 100 for _, start, end in asked)
    with pytest.raises(DatasetError, match="memory://parts ends before byte 1001"):
        reader.read([ByteRange("memory://parts", 990, 1001)])


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTCONN, errno.EIO])
@pytest.mark.parametrize("call", ["open", "preadv", "fstat"])
def test_a_mounted_storage_that_does_not_answer_is_waited_for(
    files: list[Path], monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    """A server that is started anew, say: the file is opened anew, too."""
    clock, until = Clock(), [5.0]

    def failing(name: str) -> Any:
        real = getattr(os, name)

        def call(*args: Any) -> Any:
            if clock.now < until[0] and (name != "open" or str(args[0]).endswith(".tar")):
                if name == "fstat" and not os.readlink(f"/proc/self/fd/{args[0]}").endswith(".tar"):
                    return real(*args)
                raise OSError(number, os.strerror(number))
            return real(*args)

        return call

    wanted, status = ByteRange(str(files[2]), 100, 60_000), files[2].stat()
    versions = {wanted.path: FileVersion(status.st_size, str(status.st_mtime_ns))}  # of an open file by fstat
    reader = RangeReader(clock.retry())
    if call == "fstat":
        reader.read([wanted], versions)
    for name in {"preadv": ("preadv", "pread"), "fstat": ("preadv", "pread", "fstat")}.get(call, (call,)):
        monkeypatch.setattr(os, name, failing(name))
    (got,) = reader.read([wanted], versions)
    assert got.tobytes() == files[2].read_bytes()[100:60_000]
    assert clock.now >= 5
    until[0] = math.inf
    with pytest.raises(StorageUnavailable, match=rf"2\.tar cannot be (opened|read) \({os.strerror(number)}\)"):
        RangeReader(clock.retry(100)).read([wanted])


def test_a_storage_that_is_unmounted_for_a_while_is_waited_for(tmp_path: Path) -> None:
    """Its files are gone with their folders. One that is missing in its folder is an error at once, and so is one of
    which a clip in place knows the version."""
    path = tmp_path / "mounted" / "file"
    path.parent.mkdir()
    clock, wanted = Clock(), ByteRange(str(path), 0, 3)

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.now > 20 and not path.parent.exists():
            path.parent.mkdir()
            path.write_bytes(b"abc")

    reader = RangeReader(Retry(600, lambda: clock.now, sleep))
    with pytest.raises(DatasetError, match="No such file"):
        reader.read([wanted])
    assert not clock.waits
    path.parent.rmdir()
    with pytest.raises(DatasetError, match="No such file"):
        reader.read([wanted], {wanted.path: FileVersion(3, "1")})
    assert not clock.waits
    assert reader.read([wanted])[0].tobytes() == b"abc"
    assert clock.now > 20


def test_a_file_whose_storage_is_away_is_closed_in_silence(files: list[Path], tmp_path: Path) -> None:
    def close(descriptor: int) -> None:
        os.close(descriptor)
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    file = range_reader._LocalFile(str(files[0]), None)
    file.__del__(close)
    file.__del__(close)


def test_a_sector_that_cannot_be_read_is_no_outage(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv

    def failing(descriptor: int, buffers: Any, start: int) -> int:
        if start <= 4200 < start + len(buffers[0]):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, buffers, start)

    monkeypatch.setattr(os, "preadv", failing)
    clock = Clock()
    reader = RangeReader(clock.retry())
    with pytest.raises(
        FileTooShort, match=r"0\.tar cannot be read at byte 4000 \(Input/output error\): check the disk"
    ):
        reader.read([ByteRange(str(files[0]), 4000, 4500)])
    assert not clock.waits
    assert reader.read([ByteRange(str(files[0]), 4500, 5000)])[0].tobytes() == files[0].read_bytes()[4500:]


def test_a_read_that_lasts_is_told_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    monkeypatch.setattr(range_reader.time, "monotonic", lambda: clock.now)
    reads = LocalReads()
    with reads.noted() as reading:
        reads.tell()
        reading.begin("/mnt/a")
        for _ in range(70):
            clock.now += 1
            reads.tell()
        reading.begin("/mnt/b")
        reads.tell()
    clock.now += 100
    reads.tell()
    said = [record.getMessage().partition(" s:")[0] for record in caplog.records]
    assert said == ["/mnt/a is being read for 30", "/mnt/a is being read for 60"]
