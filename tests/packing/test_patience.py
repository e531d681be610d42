"""A storage that is mounted and away is waited for, whatever fails by it; a dead sector costs its video."""

from __future__ import annotations

import errno
import io
import itertools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import pytest

from streamvid.errors import InputError, VideoError
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from streamvid.packing.patience import patiently
from streamvid.storage import filesystem, parquet_writer
from streamvid.storage.explain import StorageUnavailable
from streamvid.video import ingest, remux
from streamvid.video.stored_clip import StoredClip
from streamvid.video.transcode import TranscodeOptions
from tests.support.clips import write
from tests.support.clock import Clock
from tests.support.packed import SMALL, digests

Dead = Callable[[int, int], bool]
EIO = OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(bytes(3 << 20))
    return path


@pytest.fixture
def disk(source: Path, monkeypatch: pytest.MonkeyPatch) -> list[Dead]:
    """The disk of the source, which cannot read the bytes from a first to a last one for which one of these says so."""
    dead: list[Dead] = []
    pread = os.pread

    def read(descriptor: int, size: int, at: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(source) and any(one(at, at + size) for one in dead):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, size, at)

    monkeypatch.setattr(os, "pread", read)
    return dead


def failing(*errors: Exception | None) -> Callable[[], str]:
    """A function that raises these, one at each call, and then succeeds."""
    left = list(errors)

    def process() -> str:
        if left and (error := left.pop(0)) is not None:
            raise error
        return "made"

    return process


def by(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def test_a_dead_sector_is_an_error_of_its_video(source: Path, disk: list[Dead]) -> None:
    disk.append(lambda first, last: first < (1 << 20) + 5 < last)
    clock = Clock()
    for error in (EIO, by(InputError("it can no longer be read"), EIO), by(VideoError("FFmpeg cannot read it"), EIO)):
        with pytest.raises(VideoError, match=r"the disk cannot read a part of it \(Input/output error\)"):
            patiently(str(source), source.parent / "work", failing(error, error), clock.retry())
    assert not clock.waits


@pytest.mark.parametrize("error", [EIO, by(VideoError("FFmpeg"), EIO), by(InputError("no longer"), EIO)])
@pytest.mark.parametrize("major", [8, 0])
def test_a_file_that_is_dead_as_a_whole_beside_others_that_are_not(
    source: Path, disk: list[Dead], error: Exception, major: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small one, as an image. Of a storage over a network (major 0), a part may be away."""
    (source.parent / "empty").touch()  # is read without the disk
    monkeypatch.setattr(os, "major", lambda _: major)
    disk.append(lambda *_: True)
    with pytest.raises(StorageUnavailable, match="source cannot be read"):
        patiently(str(source), source.parent / "work", failing(*[error] * 99), Clock().retry(60))
    (source.parent / "other").write_bytes(b"sound")
    with pytest.raises(VideoError if major else StorageUnavailable):
        patiently(str(source), source.parent / "work", failing(*[error] * 99), Clock().retry(60))


@pytest.mark.parametrize(
    "error", [EIO, by(VideoError("FFmpeg"), EIO), by(InputError("no longer"), EIO), VideoError("it is cut off")]
)
def test_a_storage_that_is_away_is_waited_for(source: Path, disk: list[Dead], error: Exception) -> None:
    """FFmpeg may say of an outage that the file is damaged."""
    clock = Clock()
    disk.append(lambda *_: len(clock.waits) < 3)
    assert patiently(str(source), source.parent / "work", failing(error, error, error), clock.retry()) == "made"
    assert len(clock.waits) == 3
    disk[:] = [lambda *_: True]
    with pytest.raises(StorageUnavailable, match=r"source.* cannot be read or written .*check the disk"):
        patiently(str(source), source.parent / "work", failing(*[error] * 99), Clock().retry(60))


def test_ffmpegs_eio_of_a_file_that_can_be_read_counts_the_second_time(source: Path) -> None:
    """It says so of damaged files, too."""
    clock, error = Clock(), by(VideoError("FFmpeg cannot read it"), EIO)
    assert patiently(str(source), source.parent / "work", failing(error), clock.retry()) == "made"
    with pytest.raises(VideoError, match="FFmpeg"):
        patiently(str(source), source.parent / "work", failing(error, error), clock.retry())
    assert len(clock.waits) == 2
    with pytest.raises(VideoError, match="damaged"):
        patiently(str(source), source.parent / "work", failing(VideoError("it is damaged")), clock.retry())
    assert len(clock.waits) == 2


def assert_same_tar(folder: Path) -> None:
    one, other = ((folder / name / "shards/00000000.tar").read_bytes() for name in ("expected", "packed"))
    assert one == other


@pytest.mark.parametrize("options", [PackOptions(), PackOptions(transcode=TranscodeOptions())])
def test_an_outage_while_a_shard_is_written(
    options: PackOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of an MP4 go from the source into the shard only then, or when it is encoded."""
    write(SMALL, tmp_path / "a.mp4")
    pack(tmp_path / "a.mp4", tmp_path / "expected", options=options, progress=False)
    read, outages = StoredClip.read_mp4, [1, 0, 1]

    def broken(clip: StoredClip) -> Iterator[memoryview | bytes]:
        chunks = read(clip)
        if outages:
            yield from itertools.islice(chunks, outages.pop())
            raise InputError("it can no longer be read") from EIO
        yield from chunks

    monkeypatch.setattr(StoredClip, "read_mp4", broken)
    pack(tmp_path / "a.mp4", tmp_path / "packed", options=options, progress=False)
    assert not outages
    assert_same_tar(tmp_path)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_destination_that_is_away_is_waited_for(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shard is written anew: after an fsync that failed, the bytes may be lost, though the next one succeeds."""
    for n in range(3):
        write(replace(SMALL, seed=n), tmp_path / f"{n}.mp4")
    videos = [tmp_path / f"{n}.mp4" for n in range(3)]
    pack(videos, tmp_path / "expected", shard_size=1, name="name", progress=False)
    real, calls, clock = getattr(os, call), itertools.count(), Clock()

    def failing_call(*values: Any, **options: Any) -> Any:
        if next(calls) % 7 in (4, 5):
            if call == "fsync":
                os.truncate(f"/proc/self/fd/{values[0]}", 0)
            raise EIO
        return real(*values, **options)

    monkeypatch.setattr(os, call, failing_call)
    pack(videos, tmp_path / "packed", shard_size=1, name="name", progress=False, retry_for=clock.retry())
    assert clock.waits
    monkeypatch.undo()
    assert digests(tmp_path / "packed") == digests(tmp_path / "expected")


def test_what_is_told_at_close_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS and FUSE do of a Parquet file whose bytes they could not send."""

    class Closed(io.FileIO):
        def close(self) -> None:
            was_open = not self.closed
            super().close()
            if was_open and outages:
                raise outages.pop()

    write(SMALL, tmp_path / "a.mp4")
    outages, clock = [EIO, EIO], Clock()
    monkeypatch.setattr(parquet_writer, "open", Closed, raising=False)
    pack(tmp_path / "a.mp4", tmp_path / "packed", progress=False, retry_for=clock.retry())
    assert len(clock.waits) == 2


def test_a_destination_that_stays_away_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(SMALL, tmp_path / "a.mp4")
    move, away = filesystem.move_file, tmp_path / "packed/shards/00000000.tar"

    def failing_move(local: Path, path: str) -> None:
        if path == str(away):
            raise StorageUnavailable(f"Cannot write {path}: input/output error.", path=path)
        move(local, path)

    monkeypatch.setattr(filesystem, "move_file", failing_move)
    clock = Clock()
    with pytest.raises(StorageUnavailable, match=rf"{away}: input/output error\. It was tried \d+ times in 60 s"):
        pack(tmp_path / "a.mp4", tmp_path / "packed", progress=False, retry_for=clock.retry(60))
    assert sum(clock.waits) == pytest.approx(60)
    monkeypatch.undo()
    assert pack(tmp_path / "a.mp4", tmp_path / "packed", progress=False).clips == 1


def test_a_read_of_an_mp4_that_fails_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FFmpeg read the file then, which writes another header, or called a packet damaged that the disk cannot read."""
    write(SMALL, tmp_path / "a.mp4")
    pack(tmp_path / "a.mp4", tmp_path / "expected", progress=False)
    read, failures = ingest.read_track, [EIO]

    def failing_once(file: io.FileIO) -> ingest.VideoTrack:
        if failures:
            raise failures.pop()
        return read(file)

    monkeypatch.setattr(ingest, "read_track", failing_once)
    pack(tmp_path / "a.mp4", tmp_path / "packed", progress=False)
    assert not failures
    assert_same_tar(tmp_path)


@pytest.mark.parametrize("call", range(4))
def test_a_stat_of_a_source_that_fails_once(call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The video was rejected as changed or removed."""
    video = write(SMALL, tmp_path / "a.mp4")
    stat, failures = os.stat, [False] * call + [True]

    def failing_once(path: Any, *args: Any, **options: Any) -> os.stat_result:
        if str(path) == str(video) and failures and failures.pop(0):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return stat(path, *args, **options)

    monkeypatch.setattr("streamvid.packing.source_file.os.stat", failing_once)
    report = pack([tmp_path], tmp_path / "packed", progress=False)
    assert (report.clips, report.rejected) == (1, ())


class Short(io.FileIO):
    """A file of a storage that gives less at once than is asked for, as FUSE and NFS may."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(1 + size // 3 if size and size > 0 else -1)

    def readinto(self, buffer: Any, /) -> int:
        return super().readinto(memoryview(buffer)[: 1 + len(buffer) // 3])


def test_reads_that_give_less_than_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of such an MP4 seemed to be cut off, so that FFmpeg wrote another header."""
    write(SMALL, tmp_path / "a.mp4")
    pack(tmp_path / "a.mp4", tmp_path / "expected", progress=False)
    opened = Path.open

    def short(path: Path, mode: str = "r", buffering: int = -1, *rest: Any, **options: Any) -> Any:
        if mode != "rb":
            return opened(path, mode, buffering, *rest, **options)
        return io.BufferedReader(Short(path)) if buffering else Short(path)

    monkeypatch.setattr(Path, "open", short)
    pack(tmp_path / "a.mp4", tmp_path / "packed", progress=False)
    assert_same_tar(tmp_path)


def test_temporary_files_that_cannot_be_written_are_no_fault_of_the_video(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FFmpeg writes them, too: where a disk said EIO twice, a good video was rejected."""
    write(replace(SMALL, container="mkv"), tmp_path / "a.mkv")
    pack(tmp_path / "a.mkv", tmp_path / "expected", progress=False)
    mux, outages = remux._mux, [errno.EIO, errno.ESTALE, errno.EIO]

    def broken(source: Any, target: Path, *given: Any, **more: Any) -> None:
        if outages:
            number = outages.pop()
            raise av.error.OSError(number, os.strerror(number), os.fspath(target))
        mux(source, target, *given, **more)

    monkeypatch.setattr(remux, "_mux", broken)
    report = pack(tmp_path / "a.mkv", tmp_path / "packed", progress=False)
    assert (report.clips, report.rejected, outages) == (1, (), [])
    assert_same_tar(tmp_path)


def test_whose_storage_is_away_is_named(source: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    for error, named in (
        (OSError(errno.ESTALE, "stale", str(work / "made.mp4")), re.escape(str(work / "made.mp4"))),
        (OSError(errno.ESTALE, "stale"), f"source, or a file in {re.escape(str(work))},"),
    ):
        with pytest.raises(StorageUnavailable, match=f"{named} cannot be read or written") as told:
            patiently(str(source), work, failing(*[error] * 99), Clock().retry(60))
        assert ("source" in str(told.value)) == (error.filename is None)
