"""Packing: what comes out, in whatever order, with whatever files, and whenever it is stopped."""

from __future__ import annotations

import functools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from streamvid.dataset.dataset import Dataset
from streamvid.errors import InputError, VideoError
from streamvid.inspection.verify import verify
from streamvid.packing import prepare, process_source, run_local
from streamvid.packing.inputs import find_sources
from streamvid.packing.metadata import MetadataLists
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from streamvid.packing.source_video import SourceVideo
from streamvid.video.transcode import TranscodeOptions
from streamvid.workers import WorkerCrashError, Workers, WorkerStuckError
from tests.support import hostile
from tests.support.clips import write
from tests.support.clock import soon
from tests.support.packed import NATURAL_ORDER, SMALL, add_unreadable, digests, make_videos
from tests.support.processes import alive


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_videos(tmp_path_factory.mktemp("videos"))


def left_behind(folder: Path) -> list[str]:
    """Files that belong to no finished dataset."""
    names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return sorted(name for name in names if name.startswith(".") or "unfinished" in name or name.endswith(".tmp"))


# Workers


def test_workers_answer_raise_and_survive_a_crash() -> None:
    with Workers(2) as workers:
        assert [workers.submit(hostile.double, i).result() for i in range(5)] == [0, 2, 4, 6, 8]
        with pytest.raises(VideoError, match=r"^so$"):
            workers.submit(hostile.refuse, "so").result()
        crashes = [workers.submit(hostile.die) for _ in range(3)]
        after = [workers.submit(hostile.double, i) for i in range(3)]
        for crash in crashes:
            with pytest.raises(WorkerCrashError, match="exit status 3"):
                crash.result()
        assert [future.result() for future in after] == [0, 2, 4]


def test_a_call_that_is_stuck_is_given_up() -> None:
    with Workers(2, silent_s=0.8) as workers:
        spinning, waiting = workers.submit(hostile.spin), workers.submit(hostile.sleep, 60.0)
        for stuck in (spinning, waiting):
            with pytest.raises(WorkerStuckError, match="did nothing"):
                stuck.result(timeout=120)
        assert workers.submit(hostile.read_for, 2.5).result(timeout=120)
        with pytest.raises(WorkerStuckError, match="more than 1 s"):
            workers.submit(hostile.read_for, 60.0, limit_s=1.0).result(timeout=120)
        assert workers.submit(hostile.double, 4).result(timeout=120) == 8


def test_what_workers_print_is_not_taken_for_an_answer(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with Workers(1) as workers:
        assert workers.submit(hostile.chatter, "hello").result() == "hello"
        out, err = capfd.readouterr()  # before the worker ends: a killed one does not flush
    assert out == ""
    assert err.count("hello") == 2


def test_workers_end_with_the_block_even_if_busy() -> None:
    started = time.monotonic()
    with Workers(1) as workers:
        pid = workers.submit(hostile.where).result()
        workers.submit(hostile.sleep, 60.0)
    assert time.monotonic() - started < 60
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_workers_end_with_their_parent_and_remove_its_temporary_folder(tmp_path: Path) -> None:
    """Which a parent that is killed cannot do: of a pack to a bucket it holds whole shards."""
    script = (
        "import os, sys; from streamvid.workers import Workers; from tests.support import hostile\n"
        "w = Workers(1, work=sys.argv[1])\nprint(w.submit(hostile.where).result(), flush=True); os.kill(os.getpid(), 9)"
    )
    (tmp_path / "work/clip-0").mkdir(parents=True)
    command = [sys.executable, "-c", script, str(tmp_path / "work")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    pid = int(result.stdout)
    assert soon(lambda: not alive(pid)), "the worker outlives its parent"
    assert list(tmp_path.iterdir()) == []


# What comes out


def test_clips_come_in_natural_order_with_labels_and_metadata(videos: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("path,label,note\n" + "".join(f"{n},{n[0]},n{i}\n" for i, n in enumerate(NATURAL_ORDER)))
    report = pack([videos], tmp_path / "ds", labels=labels, name="mine")
    dataset = Dataset.open(tmp_path / "ds")
    assert dataset.clips.source == NATURAL_ORDER
    assert dataset.classes == ("a", "b", "s", "t")
    assert dataset.clips.label.tolist() == [0, 0, 1, 1, 2, 3]
    assert [json.loads(meta)["note"] for meta in dataset.clips.meta] == [f"n{i}" for i in range(6)]
    assert list(dataset.clips.codec) == ["h264", "vp9", "hevc", "h264", "h264", "mjpeg"]
    assert dataset.clips.frames.tolist() == [12, 8, 12, 5, 7, 4]
    assert dataset.clips.rotation.tolist() == [0, 0, 0, 90, 0, 0]
    assert report.manifest == dataset.manifest
    assert report.manifest.name == "mine"
    assert report.manifest.seconds == pytest.approx(12 / 30 + 8 / 30 + 12 / 30 + 5 / 30 + 7 / 24 + 4 / 30, abs=2e-3)
    assert report.unlabelled == 0
    assert not report.rejected
    assert left_behind(tmp_path / "ds") == []
    assert verify(tmp_path / "ds", decode=True).problems == ()


@pytest.mark.usefixtures("worker_processes")
def test_the_same_bytes_with_any_number_of_workers(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack([videos], tmp_path / "one" / "ds", workers=1, shard_size=30_000)
    monkeypatch.setattr("streamvid.packing.run_local.process_source", hostile.first_is_slowest)
    pack([videos], tmp_path / "two" / "ds", workers=3, shard_size=30_000)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert len(list((tmp_path / "one/ds/shards").glob("*.tar"))) > 1


@pytest.mark.usefixtures("worker_processes")
def test_a_file_by_a_descriptor_of_this_process(videos: Path, tmp_path: Path) -> None:
    """As /dev/stdin of ``pack /dev/stdin dataset < one.mp4``; workers have other files there."""
    with (videos / "a/one.mp4").open("rb") as file:
        report = pack(f"/dev/fd/{file.fileno()}", tmp_path / "ds", workers=1)
    assert (report.clips, report.rejected) == (1, ())


def test_nothing_of_this_machine_is_in_the_files(videos: Path, tmp_path: Path) -> None:
    shutil.copytree(videos, tmp_path / "elsewhere")
    pack([videos], tmp_path / "x" / "ds")
    pack([tmp_path / "elsewhere"], tmp_path / "y" / "ds")
    assert digests(tmp_path / "x") == digests(tmp_path / "y")


def test_one_path_need_not_be_in_a_list(videos: Path, tmp_path: Path) -> None:
    assert pack(str(videos / "slow.mp4"), str(tmp_path / "text")).manifest.clips == 1
    assert pack(videos / "slow.mp4", tmp_path / "path").manifest.clips == 1
    with pytest.raises(InputError, match=r"no such file or folder: gone\.mp4"):
        pack("gone.mp4", tmp_path / "gone")


def test_every_file_found_is_packed_or_rejected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write(SMALL, folder / "good.MP4")
    shutil.copy(folder / "good.MP4", folder / "extension.ivf")
    (folder / "playlist.mp4").write_text("#EXTM3U\n#EXTINF:1,\ngood.MP4\n")
    (folder / "script.flv").write_text("ffconcat version 1.0\nfile good.MP4\n")
    for name in ("empty.wmv", "empty.h264", "empty.gif", "empty.ogv"):
        (folder / name).write_bytes(b"")
    for name in ("captions.vtt", "good.json", "notes.txt", "list.m3u8"):
        (folder / name).write_text("x")
    report = pack(folder, tmp_path / "ds")
    sources = pq.read_table(tmp_path / "ds/shards/00000000.parquet")["source"].to_pylist()
    assert sources == ["extension.ivf", "good.MP4"]
    assert {one.source: one.reason.partition(",")[0] for one in report.rejected} == {
        **dict.fromkeys(("empty.gif", "empty.h264", "empty.ogv", "empty.wmv"), "it is empty"),
        "playlist.mp4": "it is an HLS playlist",
        "script.flv": "it is an ffconcat script",
    }
    assert "left out: 1 .json, 1 .m3u8, 1 .txt, 1 .vtt" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"inputs": None}, "inputs must be a path or URL or a list of them; it is None"),
        ({"inputs": ["a.mp4", 3]}, "inputs must be paths or URLs, one of them is 3"),
        ({"destination": ["ds"]}, r"destination must be a path or URL; it is \['ds'\]"),
        ({"destination": ""}, "destination is an empty path"),
        ({"inputs": ["in", ""]}, "inputs is an empty path"),
        ({"destination": "s3:/bucket/ds"}, "write s3://bucket/ds"),
        ({"destination": "~/ds"}, "destination ~/ds"),
        ({"labels": ""}, "labels is an empty path"),
        ({"labels": {"a": 1}}, "labels must be a path or URL; it is {'a': 1}"),
        ({"metadata": [None]}, "metadata must be paths or URLs, one of them is None"),
        ({"options": {"fps": 3}}, r"options must be PackOptions\(…\)"),
        ({"shard_size": "1MiB"}, "shard_size must be a whole number"),
        ({"workers": "2"}, "workers must be a whole number"),
        ({"workers": 1025}, "workers must be a whole number from 1 to 1024; it is 1025"),
        ({"destination": "d\udcffs"}, r"destination 'd\\udcffs' is not UTF-8: name another"),
        ({"overwrite": "no"}, "overwrite must be True or False; it is 'no'"),
        ({"append": 1}, "append must be True or False; it is 1"),
        ({"engine": "rey"}, "engine must be one of 'local', 'ray'; it is 'rey'; did you mean 'ray'"),
        ({"engine": np.array([1, 2])}, "engine must be one of"),
    ],
)
def test_arguments_of_another_type(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        pack(**{"inputs": ["in"], "destination": "ds", **arguments})


def test_a_rate_in_python() -> None:
    assert PackOptions(fps=29.97).fps == Fraction(2997, 100)  # type: ignore[arg-type]
    assert PackOptions(fps=24).fps == Fraction(24)  # type: ignore[arg-type]
    for wrong in (0, -1, "24", True, float("nan")):
        with pytest.raises(InputError, match="fps must be a number above 0"):
            PackOptions(fps=wrong)  # type: ignore[arg-type]


def test_shards_keep_to_their_size(videos: Path, tmp_path: Path) -> None:
    pack([videos], tmp_path / "ds", shard_size=30_000)
    dataset = Dataset.open(tmp_path / "ds")
    for entry in dataset.shards:
        assert entry.bytes <= 30_000 or entry.clips == 1
    # Nor are they smaller than need be: no two neighbours would fit into one.
    for first, second in zip(dataset.shards[:-1], dataset.shards[1:], strict=True):
        next_clip = dataset.rows(dataset.shards.index(second)).start
        content = dataset.clips.mp4_size[next_clip] + 3 * 512
        assert first.bytes + content > 30_000 - 10_240
    assert sum(entry.clips for entry in dataset.shards) == 6


def test_a_clip_larger_than_a_shard_gets_one_of_its_own(videos: Path, tmp_path: Path) -> None:
    report = pack([videos], tmp_path / "ds", shard_size=1)
    assert [entry.clips for entry in report.manifest.shards] == [1] * 6


def test_unlabelled_videos_are_counted(videos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "l.csv").write_text("path,label\nslow.mp4,4\n")
    with caplog.at_level(logging.WARNING, "streamvid"):
        report = pack([videos], tmp_path / "ds", labels=tmp_path / "l.csv")
    assert report.unlabelled == 5
    assert "5 of 6 videos have no label" in caplog.text
    assert Dataset.open(tmp_path / "ds").clips.label.tolist() == [-1, -1, -1, -1, 4, -1]


# What cannot be packed


@pytest.mark.usefixtures("worker_processes")
def test_unreadable_files_are_rejected_with_reasons(videos: Path, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed"
    shutil.copytree(videos, mixed)
    reasons = add_unreadable(mixed)
    report = pack([mixed], tmp_path / "ds")
    assert {rejected.source for rejected in report.rejected} == set(reasons)
    for rejected in report.rejected:
        assert reasons[rejected.source] in rejected.reason
        assert "\n" not in rejected.reason
    table = pq.read_table(tmp_path / "ds" / "rejected.parquet").to_pylist()
    assert table == [{"source": r.source, "reason": r.reason} for r in report.rejected]
    assert Dataset.open(tmp_path / "ds").clips.source == NATURAL_ORDER


def test_pipes_and_devices_in_a_folder_are_rejected(tmp_path: Path) -> None:
    """To open a pipe waits for its other end."""
    (tmp_path / "in").mkdir()
    write(SMALL, tmp_path / "in" / "a.mp4")
    os.mkfifo(tmp_path / "in" / "b.mp4")
    (tmp_path / "in" / "c.mp4").symlink_to("/dev/zero")
    (tmp_path / "in" / "d.mp4").symlink_to("/dev/null")
    report = pack([tmp_path / "in"], tmp_path / "set", progress=False)
    assert [one.source for one in report.rejected] == ["b.mp4", "c.mp4", "d.mp4"]
    assert {one.reason for one in report.rejected} == {"it is a pipe, a device or a socket, not a file"}


def test_listed_files_that_are_missing_are_rejected(videos: Path, tmp_path: Path) -> None:
    shutil.copy(videos / "slow.mp4", tmp_path)
    (tmp_path / "link.mp4").symlink_to("nowhere.mp4")
    (tmp_path / "list.csv").write_text("path\nslow.mp4\ngone.mp4\nlink.mp4\n")
    report = pack([tmp_path / "list.csv"], tmp_path / "ds")
    assert {rejected.source: rejected.reason for rejected in report.rejected} == {
        "gone.mp4": f"there is no file '{tmp_path}/gone.mp4'",
        "link.mp4": "it cannot be opened: No such file or directory; it is a link to 'nowhere.mp4'",
    }


@pytest.mark.usefixtures("worker_processes")
def test_a_crash_costs_one_video(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamvid.packing.run_local.process_source", hostile.crash_on_two)
    report = pack([videos], tmp_path / "ds", workers=2)
    assert [(r.source, "SIGSEGV" in r.reason) for r in report.rejected] == [("a/two.mkv", True)]
    assert Dataset.open(tmp_path / "ds").clips.source == [name for name in NATURAL_ORDER if "two" not in name]


@pytest.mark.usefixtures("worker_processes")
def test_a_worker_that_is_killed_costs_no_video(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel kills workers first where memory runs out: the video is tried again, alone."""
    monkeypatch.setattr("streamvid.packing.run_local.process_source", hostile.killed_at_two)
    assert not pack([videos], tmp_path / "ds", workers=2).rejected
    assert Dataset.open(tmp_path / "ds").clips.source == NATURAL_ORDER
    monkeypatch.setattr("streamvid.packing.run_local.process_source", hostile.killed_at_every_two)
    (rejected,) = pack([videos], tmp_path / "other", workers=2).rejected
    assert rejected.source == "a/two.mkv"
    assert "killed (SIGKILL), also while it ran alone, as where memory runs out" in rejected.reason


def test_a_video_that_hangs_is_rejected(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamvid.packing.run_local.process_source", hostile.stuck_on_two)
    monkeypatch.setattr("streamvid.packing.run_local.Workers", functools.partial(Workers, silent_s=1.5))
    report = pack([videos], tmp_path / "ds", workers=2)
    assert [(r.source, "stuck" in r.reason) for r in report.rejected] == [("a/two.mkv", True)]


@pytest.mark.usefixtures("worker_processes")
def test_temporary_files_do_not_pile_up(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamvid.packing.run_local.process_source", hostile.few_places)
    assert not pack([videos], tmp_path / "ds", workers=1).rejected


@pytest.mark.usefixtures("worker_processes")
def test_a_full_disk_is_no_fault_of_the_videos(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamvid.packing.run_local.process_source", hostile.full_disk)
    with pytest.raises(OSError, match="No space left"):
        pack([videos], tmp_path / "ds")
    assert not (tmp_path / "ds/dataset.json").exists()
    assert left_behind(tmp_path / "ds") == ["unfinished.txt"]


def test_all_rejected(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/x.mp4").write_text("no video")
    with pytest.raises(InputError, match=r"of 1 video none can be packed; x\.mp4: "):
        pack([tmp_path / "in"], tmp_path / "ds")
    assert sorted(p.name for p in (tmp_path / "ds").iterdir()) == ["rejected.parquet"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"workers": 0}, "workers must be a whole number from 1 to 1024; it is 0"),
        ({"shard_size": 0}, "shard_size must be"),
        ({"labels": "/none.csv"}, "none.csv"),
        ({"name": "d\udcffs"}, "name must be UTF-8 text"),
    ],
)
def test_options_that_cannot_be(videos: Path, tmp_path: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        pack([videos], tmp_path / "ds", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "ds").exists()


# What was there before


def test_a_dataset_is_replaced_only_when_asked(videos: Path, tmp_path: Path) -> None:
    pack([videos], tmp_path / "ds", shard_size=1)
    before = digests(tmp_path / "ds")
    with pytest.raises(InputError, match="holds a dataset already"):
        pack([videos], tmp_path / "ds")
    with pytest.raises(InputError, match="no such file"):
        pack([tmp_path / "missing"], tmp_path / "ds", overwrite=True)
    assert digests(tmp_path / "ds") == before
    (tmp_path / "ds/shards/notes.txt").write_text("mine")
    pack([videos / "slow.mp4"], tmp_path / "ds", overwrite=True)
    assert sorted(p.name for p in (tmp_path / "ds/shards").iterdir()) == [
        "00000000.idx", "00000000.packets", "00000000.parquet", "00000000.tar", "notes.txt",
    ]  # fmt: skip
    assert verify(tmp_path / "ds").ok


def test_shards_of_others_are_left_alone(videos: Path, tmp_path: Path) -> None:
    (tmp_path / "ds/shards").mkdir(parents=True)
    (tmp_path / "ds/shards/00000000.tar").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="shards that streamvid did not write"):
            pack([videos], tmp_path / "ds", overwrite=overwrite)
    (tmp_path / "ds/dataset.json").write_text('{"format": "other"}')
    with pytest.raises(InputError, match=r"dataset\.json that is not streamvid's"):
        pack([videos], tmp_path / "ds", overwrite=True)
    assert (tmp_path / "ds/shards/00000000.tar").read_text() == "precious"


def test_a_dataset_that_appears_meanwhile_is_not_replaced(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(inputs: Sequence[str], lists: MetadataLists, **_: object) -> list[SourceVideo]:
        monkeypatch.undo()
        pack([videos / "slow.mp4"], tmp_path / "ds")
        return find_sources(inputs, lists)

    monkeypatch.setattr("streamvid.packing.job_spec.find_sources", search)
    with pytest.raises(InputError, match="holds a dataset already"):
        pack([videos], tmp_path / "ds")
    assert verify(tmp_path / "ds").ok


def test_two_packs_to_one_place(videos: Path, tmp_path: Path) -> None:
    import fcntl

    (tmp_path / "ds").mkdir()
    handle = os.open(tmp_path / "ds", os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        with pytest.raises(InputError, match="another process writes to"):
            pack([videos], tmp_path / "ds")
    finally:
        os.close(handle)


# Stopped midway


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_by_a_signal(tmp_path: Path, stop: signal.Signals, code: int) -> None:
    (tmp_path / "in").mkdir()
    write(SMALL, tmp_path / "in/0.mp4")
    for n in range(1, 5000):
        os.link(tmp_path / "in/0.mp4", tmp_path / f"in/{n}.mp4")
    command = [sys.executable, "-m", "streamvid", "pack", str(tmp_path / "in"), str(tmp_path / "ds")]
    # A terminal sends its signals to a whole process group.
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert soon(lambda: list(tmp_path.glob("ds/.packing-*/*.tar")) or process.poll() is not None)
    assert process.poll() is None, process.stderr and process.stderr.read()
    os.killpg(process.pid, stop)
    _, said = process.communicate(timeout=120)
    assert process.returncode == code
    assert "Traceback" not in said
    assert not (tmp_path / "ds/dataset.json").exists()
    assert left_behind(tmp_path / "ds") == ["unfinished.txt"]


# Elsewhere than on disk


def test_to_another_file_system(videos: Path, tmp_path: Path) -> None:
    url = "memory://bucket/ds"
    pack([videos], url, shard_size=30_000)
    pack([videos], tmp_path / "ds", shard_size=30_000)
    memory = fsspec.filesystem("memory")
    there = {path.removeprefix("/bucket/ds/"): memory.cat_file(path) for path in memory.find("/bucket/ds")}
    here = {str(p.relative_to(tmp_path / "ds")): p.read_bytes() for p in (tmp_path / "ds").rglob("*") if p.is_file()}
    assert there == here
    dataset = Dataset.open(url)
    assert dataset.clips.source == NATURAL_ORDER
    assert len(dataset.index(0)) == 12
    with pytest.raises(InputError, match="holds a dataset already"):
        pack([videos], url)
    pack([videos / "slow.mp4"], url, overwrite=True)
    assert sorted(memory.find("/bucket/ds")) == [
        "/bucket/ds/dataset.json",
        "/bucket/ds/pack-report.json",
        *(f"/bucket/ds/shards/00000000.{extension}" for extension in ("idx", "packets", "parquet", "tar")),
    ]


def test_from_a_bucket_to_a_bucket(videos: Path, tmp_path: Path, s3_bucket: str) -> None:
    from streamvid.storage import filesystem

    for name in NATURAL_ORDER:
        filesystem.put_file(videos / name, f"s3://{s3_bucket}/videos/{name}")
    filesystem.write_bytes(f"s3://{s3_bucket}/videos/text.mp4", b"no video")
    filesystem.write_bytes(f"s3://{s3_bucket}/videos/list.csv", b"path\nslow.mp4\nb/gone.mp4\n")
    filesystem.write_bytes(f"s3://{s3_bucket}/labels.csv", b"path,label\nslow.mp4,3\n")
    url = f"s3://{s3_bucket}/ds"
    report = pack([f"s3://{s3_bucket}/videos"], url, labels=f"s3://{s3_bucket}/labels.csv", shard_size=30_000)
    assert [rejected.source for rejected in report.rejected] == ["text.mp4"]
    assert verify(url, decode=True).ok
    pack([videos], tmp_path / "ds", labels=f"s3://{s3_bucket}/labels.csv", shard_size=30_000)
    there = json.loads(filesystem.read_bytes(f"{url}/dataset.json"))
    assert all(shard.pop("etags").keys() == {"tar", "packets", "parquet"} for shard in there["shards"])
    assert there == json.loads((tmp_path / "ds/dataset.json").read_bytes())
    listed = pack([f"s3://{s3_bucket}/videos/*/*.mp4", f"s3://{s3_bucket}/videos/slow.mp4"], tmp_path / "globbed")
    assert listed.manifest.clips == 3
    listed = pack([f"s3://{s3_bucket}/videos/list.csv"], tmp_path / "listed")
    assert [rejected.source for rejected in listed.rejected] == ["b/gone.mp4"]
    pack([videos / "slow.mp4"], url, overwrite=True)
    assert len(filesystem.list_files(f"{url}/shards")) == 4
    assert not filesystem.exists(f"{url}/rejected.parquet")
    with pytest.raises(InputError, match="does not exist"):
        pack([f"s3://{s3_bucket}/nothing"], tmp_path / "none")


def test_a_video_that_changes_while_it_waits_to_be_written(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pack ended, and the same command was refused, as the videos were others: all that was packed was lost."""
    source = tmp_path / "in"
    shutil.copytree(videos, source)

    def process(*arguments: Any) -> list[process_source.Outcome]:
        made = process_source.process_sources(*arguments)
        path = Path(arguments[1][0][0].path)
        if path.name == "one.mp4":
            os.utime(path)
        if path.name == "clip10.mp4":
            path.unlink()
        return made

    monkeypatch.setattr(run_local, "process_sources", process)
    report = pack(source, tmp_path / "ds")
    changed = [
        Path(rejected.source).name for rejected in report.rejected if "was changed or removed" in rejected.reason
    ]
    assert changed == ["one.mp4", "clip10.mp4"]
    assert len(report.rejected) + report.clips == report.videos
    assert verify(tmp_path / "ds", workers=1).ok
    monkeypatch.undo()
    assert pack(source, tmp_path / "ds", append=True).clips == 1


@pytest.mark.parametrize("options", [PackOptions(), PackOptions(transcode=TranscodeOptions())])
def test_a_video_that_is_removed_while_it_is_looked_at(
    options: PackOptions, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind its checksums its frames are decoded, or encoded: that it was away then ended the pack."""
    source = tmp_path / "in"
    shutil.copytree(videos, source)

    def remux(path: str, *arguments: Any, **named: Any) -> Any:
        made = prepare.remux_or_build(path, *arguments, **named)
        if path.endswith("/one.mp4"):
            Path(path).unlink()
        return made

    monkeypatch.setattr(process_source, "remux_or_build", remux)
    report = pack(source, tmp_path / "ds", options=options)
    (rejected,) = (one for one in report.rejected if one.source == "a/one.mp4")
    assert "was changed or removed" in rejected.reason
    assert len(report.rejected) + report.clips == report.videos
