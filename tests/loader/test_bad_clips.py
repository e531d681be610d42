"""Bad clips cost themselves, not the run: all loaders, on damaged datasets, against the same dataset undamaged."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

import streamvid as sv
from streamvid.cli.main import main
from streamvid.decode import isolated
from streamvid.decode.cpu import CpuDecoder
from streamvid.errors import DatasetError, InputError, StreamvidError, VideoError
from streamvid.inspection.verify import verify
from streamvid.loader import quarantine, rescue
from streamvid.loader.quarantine import OnError
from streamvid.packing.options import PackOptions
from streamvid.storage.range_reader import RangeReader
from streamvid.storage.shard_cache import ShardCache
from tests.support import hostile
from tests.support.bad_clips import Batch, assert_good_ones, decode_here, make_dataset, samples, with_zeroed
from tests.support.batches import same
from tests.support.clips import write
from tests.support.packed import edit_parquet, pack_recipes, replace_packets, reseal
from tools.clips import Recipe

CODECS = [("h264", "mp4"), ("vp9", "webm"), ("hevc", "mp4"), ("mjpeg", "avi")] * 5
BAD = (3, 8, 13)


@pytest.fixture(autouse=True)
def _tried_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "processes" not in request.keywords:
        monkeypatch.setattr(rescue, "decode_isolated", decode_here)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("whole"), CODECS)


@pytest.fixture(scope="module")
def damaged(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clips were damaged when they were packed, one afterwards."""
    path = with_zeroed(whole, tmp_path_factory.mktemp("damaged") / "set", *BAD[1:])
    return with_zeroed(whole, path, BAD[0], source=False)


def loader(path: Any, folder: Path, **options: Any) -> sv.StreamLoader:
    given = {"batch_size": 4, "sampling": sv.Window(3), "device": "cpu", "num_threads": 2, "seed": 5}
    return sv.StreamLoader(path, **{**given, "quarantine": folder / "quarantine", **options})


def entries(folder: Path) -> list[dict[str, Any]]:
    lines = [line for file in sorted((folder / "quarantine").iterdir()) for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def epochs(one: sv.StreamLoader, count: int = 1) -> list[Batch]:
    return [batch for _ in range(count) for batch in one]


@pytest.mark.parametrize(
    ("on_error", "transform"),
    [("skip", None), ("mask", sv.Transform(resize=(32, 32), rotate=10))],
    ids=["plain", "dali"],
)
def test_bad_clips_are_replaced(
    whole: Path, damaged: Path, tmp_path: Path, on_error: OnError, transform: Any, caplog: pytest.LogCaptureFixture
) -> None:
    expected = samples(epochs(loader(whole, tmp_path, transform=transform), 2))
    with loader(damaged, tmp_path, transform=transform, on_error=on_error) as one:
        batches = epochs(one, 2)
        stats = one.stats()
        assert len(batches) == 2 * len(one)
    assert_good_ones(samples(batches), expected, set(BAD))
    assert {len(batch["clip"]) for batch in batches} == {4}
    for batch in batches:
        for n in (~batch["valid"]).nonzero().flatten().tolist():
            row = int(batch["clip"][n])
            assert batch["key"][n] == one.dataset.key(row)
            if on_error == "mask":
                assert row in BAD
                assert not batch["video"][n].any()
                assert not batch["mask"][n].any()
                assert (batch["pts"][n] == -1).all()
            else:
                assert row not in BAD
                assert batch["video"][n].any()
                assert torch.equal(batch["video"][n], expected[int(batch["epoch"][n]), row]["video"])
    assert sum(int((~batch["valid"]).sum()) for batch in batches) == 2 * len(BAD)
    assert stats.clips == 2 * (len(CODECS) - len(BAD))
    assert stats.frames == 3 * stats.clips
    # Told once each: in the log, in the statistics, in the folder.
    assert sorted(clip.row for clip in stats.bad) == sorted(BAD)
    assert stats.bad_clips == len(BAD)
    told = [record for record in caplog.records if "bad clip" in record.message]
    assert len(told) == len(BAD)
    assert all(record.levelno == logging.WARNING and "\n" not in record.message for record in told)
    written = entries(tmp_path)
    assert sorted(entry["row"] for entry in written) == sorted(BAD)
    for entry in written:
        tar = Path(one.dataset.shard_path(int(one.dataset.clips.shard[entry["row"]])))
        assert (entry["key"], entry["shard"]) == (one.dataset.key(entry["row"]), tar.stem)
        # The place that is named is one of a packet.
        packets = one.dataset.index(entry["row"]).offset + one.dataset.clips.mp4_offset[entry["row"]]
        assert entry["offset"] == packets[entry["packet"]]
        assert entry["reason"]
        assert entry["suspect"] == ("shard" if entry["row"] == BAD[0] else "source")


@pytest.mark.parametrize("on_error", ["skip", "mask"])
def test_a_run_with_known_bad_clips_gives_the_same_batches(damaged: Path, tmp_path: Path, on_error: OnError) -> None:
    """That is: a run that is started again gives what the first one gave, without decoding them again."""
    with loader(damaged, tmp_path, on_error=on_error) as one:
        first = epochs(one)
    with pytest.MonkeyPatch.context() as patch, loader(damaged, tmp_path, on_error=on_error) as one:
        patch.setattr(rescue.Rescuer, "__call__", lambda *_, **__: pytest.fail("a clip is tried again"))
        again = epochs(one)
        assert one.stats().bad_clips == 0
    assert len(first) == len(again)
    assert all(map(same, first, again))
    assert len(entries(tmp_path)) == len(BAD)
    # So does a rank that reads what others found, and an excluded clip.
    keys = [one.dataset.key(row) for row in BAD]
    subset = sv.Subset(damaged, exclude=keys)
    with sv.StreamLoader(
        subset, batch_size=4, sampling=sv.Window(3), device="cpu", seed=5, on_error=on_error, quarantine=tmp_path / "no"
    ) as one:
        assert all(map(same, first, epochs(one)))
    assert not (tmp_path / "no").exists()


def test_with_raise_the_first_bad_clip_ends_the_run(damaged: Path, tmp_path: Path) -> None:
    with loader(damaged, tmp_path, on_error="raise", shuffle=False) as one:
        with pytest.raises(StreamvidError, match=one.dataset.key(3)):
            epochs(one)
        assert one.stats().bad_clips == 0
    assert not (tmp_path / "quarantine").exists()


def test_several_samples_of_a_bad_clip(whole: Path, tmp_path: Path) -> None:
    """From the step in which it is found, none of them comes, however far the stages run ahead: the same every time."""
    shutil.copytree(whole, tmp_path / "set")
    path, opened = tmp_path / "set", sv.Dataset.open(whole)
    index = opened.index(8)
    with open(opened.shard_path(int(opened.clips.shard[8])), "rb") as file:
        content = file.read()[int(opened.clips.mp4_offset[8]) :]
    packets = [content[a : a + size] for a, size in zip(index.offset.tolist(), index.size.tolist(), strict=True)]
    # Its first half is whole: only the later windows fail.
    left = iter([*packets[:6], *(bytes(len(packet)) for packet in packets[6:])])
    replace_packets(path, 8, lambda _: next(left))
    runs = []
    for n in range(2):
        with loader(path, tmp_path / str(n), sampling=sv.TiledWindows(3), batch_size=3) as one:
            runs.append(epochs(one))
        assert len(entries(tmp_path / str(n))) == 1
    assert all(map(same, runs[0], runs[1]))
    found = min(n for n, batch in enumerate(runs[0]) if not batch["valid"].all())
    for batch in runs[0][found:]:
        assert 8 not in batch["clip"][batch["valid"]].tolist()


def test_more_than_max_errors(damaged: Path, tmp_path: Path) -> None:
    with loader(damaged, tmp_path, max_errors=1) as one:
        batches, error = [], ""
        try:
            for batch in one:
                batches.append(batch)
        except DatasetError as raised:
            state, error = one.state_dict(), str(raised)
        assert re.match("2 bad clips on rank 0, more than max_errors=1; 1 in shard .*streamvid verify", error)
        assert one.stats().bad_clips == 2
    assert len(entries(tmp_path)) == 2
    with loader(damaged, tmp_path, max_errors=1) as again:
        again.load_state_dict(state)
        batches += epochs(again)
    with loader(damaged, tmp_path / "other") as one:
        assert all(map(same, batches, epochs(one)))
    assert sorted(entry["row"] for entry in entries(tmp_path)) == sorted(BAD)


def test_bad_clips_of_a_run_whose_clock_was_ahead_do_not_count(damaged: Path, tmp_path: Path) -> None:
    """As after a restart on another node. They were counted by the time in the file."""
    last = sv.Dataset.open(damaged).key(BAD[-1])
    rest = [key for key in sv.Dataset.open(damaged).clips.key if key != last]
    epochs(loader(sv.Subset(damaged, keys=rest), tmp_path))
    file = tmp_path / "quarantine" / "0.jsonl"
    file.write_text(re.sub(r'"time": "\d{4}', '"time": "9999', file.read_text()))
    assert len(entries(tmp_path)) == len(BAD) - 1 > 1
    with loader(damaged, tmp_path, max_errors=1) as one:
        assert len(epochs(one)) == len(one)
        assert [bad.key for bad in one.stats().bad] == [last]


def test_a_dataset_of_bad_clips_alone_is_an_error(whole: Path, tmp_path: Path) -> None:
    path = with_zeroed(whole, tmp_path / "set", *range(len(CODECS)))
    with (
        loader(path, tmp_path, max_errors=1000) as one,
        pytest.raises(DatasetError, match="all clips are bad"),
    ):
        epochs(one)
    with loader(path, tmp_path / "ten") as one, pytest.raises(DatasetError, match="more than max_errors=10"):
        epochs(one)


@pytest.mark.parametrize("ranks", [1, 3])
def test_resumed_on_other_ranks(whole: Path, damaged: Path, tmp_path: Path, ranks: int) -> None:
    """Begun on two ranks, left in the middle of an epoch, resumed on others: the union of what they found is enough."""
    expected = samples(epochs(loader(whole, tmp_path)))
    batches: list[Batch] = []
    states = []
    for rank in range(2):
        with loader(damaged, tmp_path, batch_size=2, rank=rank, world_size=2) as one:
            for n, batch in enumerate(one):
                batches.append(batch)
                if n == 2:
                    states.append(one.state_dict())
                    break
    assert states[0] == states[1]
    for rank in range(ranks):
        with loader(damaged, tmp_path, batch_size=2, rank=rank, world_size=ranks) as one:
            one.load_state_dict(states[0])
            batches += epochs(one)
    assert_good_ones(samples(batches), expected, set(BAD))
    assert sorted(entry["row"] for entry in entries(tmp_path)) == sorted(BAD)


def test_a_damaged_index_and_a_short_shard(whole: Path, tmp_path: Path) -> None:
    path = with_zeroed(whole, tmp_path / "set")
    opened = sv.Dataset.open(path)
    with open(opened.shard_path(int(opened.clips.shard[5]), "packets"), "r+b") as file:
        file.seek(int(opened.clips.index_offset[5]) + 24)
        file.write(b"\xff" * 64)
    reseal(path)
    expected = samples(epochs(loader(whole, tmp_path)))
    with loader(path, tmp_path) as one:
        last = int(one.dataset.clips.shard[-1])
        os.truncate(one.dataset.shard_path(last), int(one.dataset.clips.mp4_offset[-1]) + 10)
        got = samples(epochs(one))
    assert_good_ones(got, expected, {5, 19})
    suspects = {entry["row"]: entry["suspect"] for entry in entries(tmp_path)}
    assert suspects == {5: "index", 19: "shard"}
    # A shard that is restored is read again.
    reference = sv.Dataset.open(whole)
    with open(reference.shard_path(last), "rb") as good:
        Path(one.dataset.shard_path(last)).write_bytes(good.read())
    with loader(path, tmp_path) as one:
        assert_good_ones(samples(epochs(one)), expected, {5})


def test_the_folder_is_not_trusted(damaged: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with loader(damaged, tmp_path) as one:
        first = epochs(one)
    (file,) = (tmp_path / "quarantine").iterdir()
    good = file.read_text()
    line = json.loads(good.splitlines()[0])
    wrong: list[Any] = [
        {**line, "number": 10**9}, {**line, "number": -1}, {**line, "number": "0"}, {**line, "number": True},
        {**line, "key": "another"}, {**line, "key": None},
        {**line, "packets_sha256": "0" * 64}, {**line, "packets_sha256": []},
        [], 1, None, {}, "text",
    ]  # fmt: skip
    text = "\n".join(["not JSON", "[" * 10_000, *map(json.dumps, wrong), "x" * 100_000])
    torn = good.splitlines()[-1][:-5]
    file.write_text(f"{text}\n{good.splitlines()[0]}\n\n{good.splitlines()[1]}\n{torn}")
    (tmp_path / "quarantine" / "1.jsonl").mkdir()
    os.mkfifo(tmp_path / "quarantine" / "2.jsonl")
    with loader(damaged, tmp_path) as one:
        assert all(map(same, first, epochs(one)))
        # Only the clip of the line that was torn off was met again, and its line follows on one of its own.
        assert one.stats().bad_clips == 1
    assert json.loads(file.read_text().splitlines()[-1])["row"] == json.loads(good.splitlines()[-1])["row"]


def test_a_line_that_a_full_disk_cuts_off_is_not_taken_for_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:10]))
    with pytest.raises(OSError, match="No space left"):
        quarantine._append(tmp_path / "0.jsonl", b"x" * 20 + b"\n")


def test_a_folder_that_cannot_be_written(damaged: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with loader(damaged, tmp_path / "file") as one:
        epochs(one, 2)
        assert one.stats().bad_clips == len(BAD)
    assert "cannot be written" in caplog.text
    assert "cannot be read" not in caplog.text
    assert ("noted in" in caplog.text, "not noted)" in caplog.text) == (False, True)


def test_a_state_stays_legal(damaged: Path, tmp_path: Path) -> None:
    """Whatever is excluded or found bad since."""
    with loader(damaged, tmp_path) as one:
        batches = iter(one)
        head = [next(batches)]
        state = one.state_dict()
        rest = list(batches)
    coming = [key for batch in rest for key, valid in zip(batch["key"], batch["valid"], strict=True) if valid]
    excluded = coming[:3]
    (tmp_path / "keys.txt").write_text("\n".join(excluded))
    options: dict[str, Any] = {"batch_size": 4, "sampling": sv.Window(3), "device": "cpu", "seed": 5}
    with sv.StreamLoader(
        sv.Subset(damaged, exclude=tmp_path / "keys.txt"), **options, quarantine=tmp_path / "quarantine"
    ) as one:
        one.load_state_dict(state)
        without = epochs(one)
    assert len(without) == len(rest)
    got, expected = samples([*head, *without]), samples([*head, *rest])
    assert set(expected) - set(got) == {place for place, sample in expected.items() if sample["key"] in excluded}
    assert all(same(sample, expected[place]) for place, sample in got.items())
    # The others stay where they were.
    for before, after in zip(rest, without, strict=True):
        stay = [n for n, key in enumerate(before["key"]) if before["valid"][n] and key not in excluded]
        assert [after["key"][n] for n in stay] == [before["key"][n] for n in stay]


def test_a_file_with_the_name_of_the_default_folder_ends_no_run(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / quarantine.FOLDER).touch()
    with loader(whole, tmp_path, quarantine=None) as one:
        assert len(list(one)) == len(one)


def test_options_that_cannot_be(whole: Path, tmp_path: Path) -> None:
    for name, value in {"on_error": "ignore", "max_errors": -1, "quarantine": "s3://bucket/folder"}.items():
        with pytest.raises(InputError, match=name):
            loader(whole, tmp_path, **{name: value})
    with pytest.raises(InputError, match=r"quarantine \S*dataset.json is a file: name a folder"):
        loader(whole, tmp_path, quarantine=whole / "dataset.json")
    with pytest.raises(InputError, match=r"^exclude: 1 of the 1 keys are not in the dataset"):
        sv.StreamLoader(sv.Subset(whole, exclude=["no such clip"]), batch_size=1, sampling=sv.Window(2), device="cpu")
    everything = list(sv.Dataset.open(whole).clips.key)
    with pytest.raises(InputError, match="exclude names all"):
        sv.StreamLoader(sv.Subset(whole, exclude=everything), batch_size=1, sampling=sv.Window(2), device="cpu")


def test_a_decoder_that_fails_once_has_damaged_no_clip(whole: Path, tmp_path: Path) -> None:
    failed: list[str] = []
    write = CpuDecoder.write

    def fail_once(self: CpuDecoder, slices: Any, sinks: Any) -> Any:
        if not failed:
            failed.append("once")
            raise VideoError("a driver error")
        return write(self, slices, sinks)

    with pytest.MonkeyPatch.context() as patch, loader(whole, tmp_path) as one:
        patch.setattr(CpuDecoder, "write", fail_once)
        got = epochs(one)
        assert one.stats().bad_clips == 0
    with loader(whole, tmp_path) as one:
        assert all(map(same, got, epochs(one)))
    assert not (tmp_path / "quarantine").exists()
    assert failed


def test_bad_clips_are_replaced_by_the_dali_engine(tmp_path: Path) -> None:
    """Whose pipeline ends with an error that does not say which clip it is of."""
    whole = make_dataset(tmp_path, [("vp9", "webm"), ("mjpeg", "avi")] * 8)
    path = with_zeroed(whole, tmp_path / "bad", 2, 7, 8)
    options: dict[str, Any] = {"engine": "dali", "batch_size": 3, "transform": sv.Transform(resize=(32, 32))}
    with loader(whole, tmp_path, **options) as one:
        expected = samples(epochs(one, 2))
    with loader(path, tmp_path, **options, on_error="mask") as one:
        batches = epochs(one, 2)
        assert sorted(clip.row for clip in one.stats().bad) == [2, 7, 8]
        assert len(batches) == 2 * len(one)
    assert_good_ones(samples(batches), expected, {2, 7, 8})
    # The same as those of the other engine, but for the last bits of pixels.
    with loader(path, tmp_path / "other", **{**options, "engine": "default"}, on_error="mask") as one:
        for a, b in zip(epochs(one, 2), batches, strict=True):
            assert a["key"] == b["key"]
            for name in ("clip", "label", "valid", "mask", "pts", "epoch"):
                assert torch.equal(a[name], b[name]), name
    assert len(entries(tmp_path)) == 3


def test_of_a_dataset_that_is_mixed_with_itself(damaged: Path, tmp_path: Path) -> None:
    """A clip that is bad in one part is so in the other, whatever it is called there, and in the dataset alone."""
    mixed = sv.Mix([(damaged, 1), (sv.Subset(damaged), 1)])
    with loader(mixed, tmp_path, batch_size=8) as one:
        assert sum(int(batch["valid"].sum()) for batch in one) == 2 * (len(CODECS) - len(BAD))
    assert sorted(entry["row"] % len(CODECS) for entry in entries(tmp_path)) == sorted(BAD)
    for data in (mixed, damaged):
        with loader(data, tmp_path) as one:
            epochs(one)
            assert one.stats().bad_clips == 0


def clip_dataset(path: Path, folder: Path, **options: Any) -> sv.ClipDataset:
    return sv.ClipDataset(path, **{"sampling": sv.Window(3), "seed": 5, "quarantine": folder / "quarantine", **options})


def test_a_stream_of_a_clip_dataset_has_its_policy(damaged: Path, tmp_path: Path) -> None:
    """Each option alone takes precedence over the dataset's: the others were lost with it."""

    def stream(dataset: sv.ClipDataset, **options: Any) -> sv.StreamLoader:
        return sv.StreamLoader(dataset, batch_size=4, device="cpu", **options)

    raising = clip_dataset(damaged, tmp_path, on_error="raise", max_errors=0)
    with stream(raising, quarantine=tmp_path / "other") as one, pytest.raises(sv.ClipError):
        list(one)
    with stream(raising, on_error="skip") as one, pytest.raises(sv.StreamvidError, match="max_errors"):
        list(one)
    with stream(raising, on_error="skip", max_errors=9) as one:
        assert len(list(one)) == len(one)


@pytest.mark.parametrize(("on_error", "workers"), [("skip", 2), ("mask", 0)])
def test_of_a_map_style_dataset(whole: Path, damaged: Path, tmp_path: Path, on_error: OnError, workers: int) -> None:
    """By PyTorch's DataLoader: as many samples as ever, that can be collated."""
    options: dict[str, Any] = {"batch_size": 4, "shuffle": False}
    expected = samples(DataLoader(clip_dataset(whole, tmp_path), **options))
    clips = clip_dataset(damaged, tmp_path, on_error=on_error)
    batches = list(DataLoader(clips, num_workers=workers, **options))
    assert_good_ones(samples(batches), expected, set(BAD))
    assert [len(batch["clip"]) for batch in batches] == [4] * 5
    check_replaced(batches, on_error, clips.dataset)
    assert sorted(entry["row"] for entry in entries(tmp_path)) == sorted(BAD)
    # Known beforehand they are replaced alike, in another epoch by others.
    again = list(DataLoader(clip_dataset(damaged, tmp_path, on_error=on_error), **options))
    assert all(map(same, batches, again))
    clips.set_epoch(1)
    assert len(entries(tmp_path)) == len(BAD)


def check_replaced(batches: list[Batch], on_error: OnError, dataset: Any) -> None:
    count = 0
    for batch in batches:
        for n in (~batch["valid"]).nonzero().flatten().tolist():
            count += 1
            row = int(batch["clip"][n])
            assert batch["key"][n] == dataset.key(row)
            assert (row in BAD) == (on_error == "mask")
            assert bool(batch["video"][n].any()) == bool(batch["mask"][n].any()) == (on_error == "skip")
    assert count == len(BAD)


def test_frames_that_are_named_are_not_replaced(damaged: Path, tmp_path: Path) -> None:
    """Whoever asks for frames of a clip gets those, or an error; so does whoever wants an error."""
    clips = clip_dataset(damaged, tmp_path)
    assert not clips[3]["valid"]
    assert not clips[clips.dataset.key(8)]["valid"]
    assert clips[4]["valid"]
    for row in BAD:
        for ask in (lambda row=row: clips.get(row, frames=[0, 1]), lambda row=row: clips[sv.At(row, seconds=[0.1])]):
            with pytest.raises(StreamvidError, match=clips.dataset.key(row)):
                ask()
    strict = clip_dataset(damaged, tmp_path, on_error="raise")
    with pytest.raises(StreamvidError, match=clips.dataset.key(3)):
        strict[3]
    with sv.StreamLoader(strict, batch_size=4, device="cpu") as one, pytest.raises(StreamvidError):
        epochs(one)
    # An excluded clip may be asked for.
    excluded = clip_dataset(sv.Subset(damaged, exclude=[clips.dataset.key(4)]), tmp_path)  # type: ignore[arg-type]
    assert not excluded[4]["valid"]
    assert excluded[4]["clip"] != 4
    assert excluded.get(4, frames=[0])["valid"]


def test_max_errors_of_all_workers_together(whole: Path, tmp_path: Path) -> None:
    path = with_zeroed(whole, tmp_path / "set", *range(12))
    clips = clip_dataset(path, tmp_path, max_errors=4)
    with pytest.raises(DatasetError, match=r"[5-7] bad clips on rank 0, more than max_errors=4"):
        list(DataLoader(clips, batch_size=1, num_workers=2, prefetch_factor=1))


def test_a_repeat_fits_the_batch(tmp_path: Path) -> None:
    """Where clips come out in their own sizes, which a sampler has put together."""
    recipes = {f"{n}": Recipe(width=64 if n % 2 else 96, height=64, frames=6, seed=n) for n in range(8)}
    pack_recipes(recipes, tmp_path, options=PackOptions("any"))
    path = with_zeroed(tmp_path / "set", tmp_path / "bad", 3)
    clips = clip_dataset(path, tmp_path)
    order = [[1, 3, 5, 7], [0, 2, 4, 6]]
    for _ in range(2):
        batches = list(DataLoader(clips, batch_sampler=order))
        assert [batch["valid"].tolist() for batch in batches] == [[True, False, True, True], [True] * 4]
        clips.set_epoch(clips.epoch + 1)
    with sv.GpuDataLoader(clips, batch_size=4, batch_sampler=order, device="cpu") as one:
        assert sum(len(batch["clip"]) for batch in one) == 8


@pytest.mark.parametrize(("on_error", "workers"), [("skip", 0), ("mask", 2)])
def test_of_a_gpu_data_loader(whole: Path, damaged: Path, tmp_path: Path, on_error: OnError, workers: int) -> None:
    """Whose workers read and whose main process decodes: one clip fails there, two here."""
    options: dict[str, Any] = {"batch_size": 4, "device": "cpu", "num_threads": 2, "num_workers": workers}
    expected = samples(sv.GpuDataLoader(clip_dataset(whole, tmp_path), **options))
    with sv.GpuDataLoader(clip_dataset(damaged, tmp_path, on_error=on_error), **options) as one:
        batches = list(one)
        assert one.stats().clips == len(CODECS) - len(BAD)
        assert sorted(clip.row for clip in one.stats().bad) == sorted(BAD)
    assert_good_ones(samples(batches), expected, set(BAD))
    check_replaced(batches, on_error, one.dataset.dataset)
    with sv.GpuDataLoader(clip_dataset(damaged, tmp_path), **options, on_error=on_error) as one:
        assert all(map(same, batches, one))
        assert one.stats().bad_clips == 0
    assert len(entries(tmp_path)) == len(BAD)


def test_a_gpu_data_loader_that_is_to_raise(damaged: Path, tmp_path: Path) -> None:
    strict = sv.GpuDataLoader(clip_dataset(damaged, tmp_path), batch_size=4, device="cpu", on_error="raise")
    with strict, pytest.raises(StreamvidError, match=strict.dataset.dataset.key(BAD[0])):
        list(strict)


@pytest.mark.parametrize(
    ("kind", "on_error"),
    [(sv.GpuDataLoader, "skip"), (sv.GpuDataLoader, "mask"), (sv.GpuDataLoader, "raise"), (DataLoader, "skip")],
)
def test_frames_that_a_sampler_asks_for(
    kind: Any, on_error: OnError, whole: Path, damaged: Path, tmp_path: Path
) -> None:
    order = [sv.At(row, frames=[0, 11, 2]) for row in (1, 3, 4, 8)]
    order += [sv.At(row, seconds=[0.3]) for row in (13, 4, 2, 9)]
    excluded = (4,)
    options: dict[str, Any] = {"batch_size": 4, "sampler": order}
    if kind is sv.GpuDataLoader:
        options |= {"device": "cpu", "num_threads": 2}

    def opened(path: Path) -> sv.ClipDataset:
        keys = [sv.Dataset.open(whole).key(row) for row in excluded]
        return sv.ClipDataset(sv.Subset(path, exclude=keys), on_error=on_error, quarantine=tmp_path / "quarantine")

    expected = list(kind(opened(whole), **options))
    assert not (tmp_path / "quarantine").exists()
    if on_error == "raise":
        with pytest.raises(StreamvidError, match=sv.Dataset.open(whole).key(BAD[0])):
            list(kind(opened(damaged), **options))
        return
    for _ in range(2):  # the second time they are known
        batches = list(kind(opened(damaged), **options))
        assert len(batches) == len(expected)
        for got, right in zip(batches, expected, strict=True):
            rows = right["clip"].tolist()
            assert got["valid"].tolist() == [row not in BAD for row in rows]
            assert got["video"].shape == right["video"].shape
            for n, row in enumerate(rows):
                if row not in BAD:
                    assert all(same({"": got[name][n]}, {"": right[name][n]}) for name in right)
                else:
                    assert bool(got["video"][n].any()) == (on_error == "skip")
                    assert (int(got["clip"][n]) in BAD) == (on_error == "mask")
        assert sorted(entry["row"] for entry in entries(tmp_path)) == sorted(BAD)


@pytest.mark.processes
def test_in_processes_that_crash_and_hang(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is good is found good there, what is damaged damaged, and a crash or a hang costs its own clip."""
    monkeypatch.setattr(isolated, "_decode_into", hostile.decode_into)
    monkeypatch.setattr(isolated, "Pace", partial(isolated.Pace, least_s=1.0))
    path = with_zeroed(whole, tmp_path / "set", BAD[0])
    write = CpuDecoder.write

    def fail(self: CpuDecoder, slices: Any, sinks: Any) -> Any:
        if {one.name for one in slices} & {"08", "13"}:
            raise VideoError("the decoder has crashed, or hangs")
        return write(self, slices, sinks)

    monkeypatch.setattr(CpuDecoder, "write", fail)
    assert [sv.Dataset.open(whole).key(row) for row in BAD[1:]] == ["08", "13"]
    with loader(path, tmp_path) as one:
        got = samples(epochs(one))
    assert {place[1] for place in got} == set(range(len(CODECS))) - set(BAD)
    reasons = {entry["row"]: entry["reason"] for entry in entries(tmp_path)}
    assert set(reasons) == set(BAD)
    assert "its decoder crashes: SIGSEGV" in reasons[8]
    assert "its decoder hangs: " in reasons[13]


def test_single_flipped_bits_are_found(whole: Path, tmp_path: Path) -> None:
    """One bit of a packet of every other clip, which FFmpeg often hides: each is found, and no frame is wrong."""
    shutil.copytree(whole, tmp_path / "set")
    opened, random = sv.Dataset.open(tmp_path / "set"), np.random.default_rng(3)
    bad = set(range(0, len(CODECS), 2))
    for row in bad:
        index = opened.index(row)
        packet = int(random.integers(3))  # of those that the first window needs
        at = int(opened.clips.mp4_offset[row] + index.offset[packet] + random.integers(index.size[packet]))
        with open(opened.shard_path(int(opened.clips.shard[row])), "r+b") as file:
            file.seek(at)
            (value,) = file.read(1)
            file.seek(at)
            file.write(bytes([value ^ 1 << int(random.integers(8))]))
    frames = sv.Frames([0, 1, 2])
    with loader(whole, tmp_path, sampling=frames) as one:
        expected = samples(epochs(one))
    with loader(tmp_path / "set", tmp_path, sampling=frames) as one:
        assert_good_ones(samples(epochs(one)), expected, bad)
    found = {entry["row"]: entry for entry in entries(tmp_path)}
    assert set(found) == bad
    assert all("CRC-32C" in entry["reason"] and entry["suspect"] == "shard" for entry in found.values())


def test_a_sample_description_of_something_else(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "set")
    opened = sv.Dataset.open(tmp_path / "set")
    for row, other in ((0, 1), (2, None), (4, b"")):
        s = int(opened.clips.shard[row])
        own = bytes(opened.clips.stsds[opened.clips.stsd_id[row]])
        stsd = bytes(opened.clips.stsds[opened.clips.stsd_id[1]]) if other == 1 else own[:8] + b"\xff" * (len(own) - 8)
        edit_parquet(Path(opened.shard_path(s, "parquet")), row - opened.rows(s).start, stsd=stsd)
    reseal(tmp_path / "set")
    expected = samples(epochs(loader(whole, tmp_path)))
    with loader(tmp_path / "set", tmp_path) as one:
        assert_good_ones(samples(epochs(one)), expected, {0, 2, 4})


def test_a_damaged_copy_in_the_cache(whole: Path, tmp_path: Path) -> None:
    """It is no clip's fault: the clip is read where it is stored, and the copy is fetched again."""
    shutil.copytree(whole, tmp_path / "set")
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "set"), f"/{tmp_path.name}", recursive=True)
    options: dict[str, Any] = {"cache_dir": tmp_path / "cache", "fetch": "shards"}
    with loader(f"memory://{tmp_path.name}", tmp_path, **options) as one:
        expected = epochs(one)
        names = {entry.sha256: s for s, entry in enumerate(one.dataset.shards)}
        clips = one.dataset.clips
    for file in (tmp_path / "cache").iterdir():
        if file.name not in names:
            continue
        # As bits rot: nobody has written to it.
        before, content = file.stat(), bytearray(file.read_bytes())
        row = int(np.flatnonzero(clips.shard == names[file.name])[0])
        start = int(clips.mp4_offset[row])
        content[start + 2000 : start + int(clips.mp4_size[row])] = bytes(int(clips.mp4_size[row]) - 2000)
        file.write_bytes(content)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with loader(f"memory://{tmp_path.name}", tmp_path, **options) as one:
        assert all(map(same, expected, epochs(one)))
        assert one.stats().bad_clips == 0
    assert not (tmp_path / "quarantine").exists()
    with loader(f"memory://{tmp_path.name}", tmp_path, **options) as one:
        epochs(one)
    for file in (tmp_path / "cache").iterdir():
        if file.name in names:
            assert hashlib.sha256(file.read_bytes()).hexdigest() == file.name


@pytest.mark.parametrize("change", ["a bit", "cut off"])
def test_a_damaged_shard_in_a_bucket_costs_its_damaged_clips(whole: Path, tmp_path: Path, change: str) -> None:
    """It is not what dataset.json says, so the cache takes no copy: it is read where it is, and fetched but once."""
    opened = sv.Dataset.open(whole)
    shutil.copytree(whole, tmp_path / "set")
    bad = int(opened.rows(1).stop - 1)
    path = Path(opened.shard_path(1)).relative_to(whole)
    data = bytearray((tmp_path / "set" / path).read_bytes())
    at = int(opened.clips.mp4_offset[bad] + opened.index(bad).offset[0])
    data[at] ^= 1
    (tmp_path / "set" / path).write_bytes(data if change == "a bit" else data[:at])
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "set"), f"/{tmp_path.name}", recursive=True)
    frames = sv.Frames([0, 1, 2])
    expected = samples(epochs(loader(whole, tmp_path, sampling=frames)))
    options: dict[str, Any] = {"cache_dir": tmp_path / "cache", "fetch": "shards", "sampling": frames}
    with loader(f"memory://{tmp_path.name}", tmp_path, **options) as one:
        assert_good_ones(samples(epochs(one)), expected, {bad})
        assert [clip.row for clip in one.stats().bad] == [bad]
    # Where nothing is to be checked, the shard as a whole is, as ever.
    with (
        loader(f"memory://{tmp_path.name}", tmp_path / "no", **options, checksum=None) as one,
        pytest.raises(DatasetError, match="restore the file"),
    ):
        epochs(one)


@pytest.mark.parametrize(("kind", "suspect"), [("tar", "shard"), ("packets", "index")])
def test_a_file_that_is_cut_off_is_named_once_with_one_remedy(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, suspect: str
) -> None:
    """The remedy came twice, and a .packets file that was cut off was blamed on its tar."""
    path = with_zeroed(whole, tmp_path / "set")
    with loader(path, tmp_path) as one:
        data, last = one.dataset, int(one.dataset.clips.shard[-1])
        file = data.shard_path(last, kind)
        at = int((data.clips.mp4_offset if kind == "tar" else data.clips.index_offset)[-1])
        os.truncate(file, at + 10)
        epochs(one)
    (entry,) = entries(tmp_path)
    assert (entry["row"], entry["suspect"]) == (19, suspect)
    (said,) = (record.getMessage() for record in caplog.records)
    assert f"byte {at}): its file ends before byte " in said
    assert f"({file}); restore the shard" in said
    assert said.count("restore") == 1


@pytest.mark.parametrize(("engine", "what"), [("default", "the folder"), ("dali", "its files")])
def test_a_cache_that_is_removed_while_its_files_are_in_use(tmp_path: Path, engine: Any, what: str) -> None:
    """By a cleaner of temporary folders, at the worst moment: between a file's lease and its opening."""
    whole = make_dataset(tmp_path, [("vp9", "webm")] * 8)
    memory = fsspec.filesystem("memory")
    memory.put(str(whole), f"/{tmp_path.name}", recursive=True)
    options: dict[str, Any] = {"engine": engine, "batch_size": 2, "transform": sv.Transform(resize=(32, 32))}
    expected = epochs(loader(whole, tmp_path, **options), 2)
    cache, leased, removed = tmp_path / "cache", ShardCache.lease, []

    def lease(self: ShardCache, *args: Any, **given: Any) -> Any:
        found = leased(self, *args, **given)
        removed.append(Path(found.path).exists())
        if what == "the folder":
            shutil.rmtree(cache, ignore_errors=True)
        else:
            for file in cache.iterdir():
                file.unlink(missing_ok=True)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardCache, "lease", lease)
        given = {**options, "cache_dir": cache, "fetch": "shards", "on_error": "raise"}
        with loader(f"memory://{tmp_path.name}", tmp_path, **given) as one:
            assert all(map(same, epochs(one, 2), expected))
    assert len(removed) > 4
    assert any(removed)


def test_a_row_that_claims_an_enormous_picture(whole: Path, tmp_path: Path) -> None:
    """Nothing is allocated for it: it is held against what it decodes to."""
    path = Path(shutil.copytree(whole, tmp_path / "set"))
    opened = sv.Dataset.open(path)
    for row in (0, 1, 3):
        s = int(opened.clips.shard[row])
        at = row - opened.rows(s).start
        edit_parquet(Path(opened.shard_path(s, "parquet")), at, width=32768, height=32768)
    reseal(path)
    options: dict[str, Any] = {"transform": sv.Transform(resize=(32, 32)), "sampling": sv.All()}
    expected = samples(epochs(loader(whole, tmp_path, **options)))
    with loader(path, tmp_path, **options) as one:
        assert_good_ones(samples(epochs(one)), expected, {0, 1, 3})
    assert all("32768x32768" in entry["reason"] for entry in entries(tmp_path))


def test_what_is_no_fault_of_a_clip(whole: Path, tmp_path: Path) -> None:
    """A shard that is gone ends the run as ever, and no clip is called bad."""
    shutil.copytree(whole, tmp_path / "set")
    with loader(tmp_path / "set", tmp_path) as one:
        Path(one.dataset.shard_path(2)).unlink()
        with pytest.raises(DatasetError, match=r"^shard .* cannot be read"):
            epochs(one)
    assert not (tmp_path / "quarantine").exists()


def test_a_disk_that_cannot_read_a_sector_costs_its_clip(whole: Path, tmp_path: Path) -> None:
    """And a mounted storage that is gone for a while costs none."""
    opened, real, stale = sv.Dataset.open(whole), os.preadv, [5]
    bad = 2
    shard = opened.shard_path(int(opened.clips.shard[bad]))
    at = int(opened.clips.mp4_offset[bad] + opened.index(bad).offset[1])

    def failing(descriptor: int, buffers: Any, start: int) -> int:
        if start <= at < start + len(buffers[0]) and os.readlink(f"/proc/self/fd/{descriptor}") == shard:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if stale[0]:
            stale[0] -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(descriptor, buffers, start)

    expected = samples(epochs(loader(whole, tmp_path, sampling=sv.All())))
    with pytest.MonkeyPatch.context() as patch, loader(whole, tmp_path, sampling=sv.All()) as one:
        patch.setattr(os, "preadv", failing)
        assert_good_ones(samples(epochs(one)), expected, {bad})
    (entry,) = entries(tmp_path)
    assert "cannot be read at byte" in entry["reason"]
    assert entry["suspect"] == "shard"


def test_two_damaged_answers_make_no_clip_bad(whole: Path, tmp_path: Path) -> None:
    """The one that a batch was read by, and the one by which its clip is looked at."""
    read, damaged = RangeReader.read, []

    def flip(self: RangeReader, ranges: Any, *args: Any, **options: Any) -> Any:
        answers = read(self, ranges, *args, **options)
        if len(damaged) < 2 and all(one.path.endswith(".tar") for one in ranges):
            damaged.append(ranges)
            answers = [answer ^ np.uint8(1) for answer in answers]
        return answers

    with pytest.MonkeyPatch.context() as patch, loader(whole, tmp_path) as one:
        patch.setattr(RangeReader, "read", flip)
        got = epochs(one)
        assert one.stats().bad_clips == 0
    with loader(whole, tmp_path) as one:
        assert all(map(same, got, epochs(one)))
    assert len(damaged) == 2


def test_forgotten_clips(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "set")
    opened = sv.Dataset.open(whole)
    shards = [opened.shards[int(opened.clips.shard[row])].name for row in BAD]
    rows = [row - opened.rows(int(opened.clips.shard[row])).start for row in BAD]
    table = pa.table({"shard": pa.array(shards, pa.string()), "row": pa.array(rows, pa.int32())})
    pq.write_table(table, tmp_path / "set" / "forgotten.parquet")
    about = {"file": "forgotten.parquet", "clips": len(BAD)}
    about["sha256"] = hashlib.sha256((tmp_path / "set" / "forgotten.parquet").read_bytes()).hexdigest()
    manifest = json.loads((tmp_path / "set" / "dataset.json").read_text())
    (tmp_path / "set" / "dataset.json").write_text(json.dumps(manifest | {"forgotten": about}))
    expected = samples(epochs(loader(whole, tmp_path)))
    for on_error in ("skip", "mask", "raise"):
        with loader(tmp_path / "set", tmp_path, on_error=on_error) as one:
            batches = epochs(one)
        assert_good_ones(samples(batches), expected, set(BAD))
    clips = clip_dataset(tmp_path / "set", tmp_path)
    assert not clips[BAD[0]]["valid"]
    with pytest.raises(KeyError, match="forgotten"):
        clips.get(BAD[0], frames=[0])
    assert not (tmp_path / "quarantine").exists()


@pytest.mark.processes
def test_verify_looks_at_just_those(damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with loader(damaged, tmp_path) as one:
        epochs(one)
        keys = {one.dataset.key(row) for row in BAD}
    for path in (tmp_path / "quarantine", tmp_path / "quarantine" / "0.jsonl"):
        report = verify(damaged, quarantine=path, progress=False)
        assert report.checked == len(BAD)
        assert {problem.clip for problem in report.problems} == keys
    assert main(["verify", str(damaged), "--quarantine", str(tmp_path / "quarantine")]) == 1
    assert "of 3 clips in quarantine every frame decoded" in " ".join(capsys.readouterr().out.split())
    for wrong in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match="no "):
            verify(damaged, quarantine=wrong, progress=False)


RANK = """
import hashlib, json, os, signal, sys
import streamvid as sv
path, folder, rank = sys.argv[1:]
with sv.StreamLoader(path, batch_size=2, sampling=sv.Window(3), device="cpu", num_threads=2, seed=5,
                     rank=int(rank), world_size=2, quarantine=folder + "/quarantine") as loader:
    for step, batch in enumerate(loader):
        for n in batch["valid"].nonzero().flatten().tolist():
            digest = hashlib.sha256(batch["video"][n].numpy().tobytes()).hexdigest()
            print(json.dumps(["clip", int(batch["clip"][n]), digest]))
        print(json.dumps(["state", loader.state_dict()]), flush=True)
        if step == 1:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def digests(batches: Iterable[Batch]) -> list[tuple[int, str]]:
    """Row and SHA-256 of the frames of each sample that counts."""
    return [
        (row, hashlib.sha256(sample["video"].numpy().tobytes()).hexdigest())
        for (_, row), sample in samples(batches).items()
    ]


@pytest.mark.processes
def test_ranks_that_are_killed_and_resumed_as_one(
    whole: Path, damaged: Path, tmp_path: Path, forked_python: Path
) -> None:
    """Real processes, without a word between them: every good clip once, every bad one noted once."""

    command = [str(forked_python), "-c", RANK, str(damaged), str(tmp_path)]
    ranks = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)]
    outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [-signal.SIGKILL] * 2
    lines = [json.loads(line) for output in outputs for line in output.splitlines()]
    states = [line[1] for line in lines if line[0] == "state"]
    got = [(row, digest) for kind, *found in lines if kind == "clip" for row, digest in [found]]
    with loader(damaged, tmp_path, batch_size=2) as one:
        one.load_state_dict(max(states, key=lambda state: state["segments"][-1][3]))
        got += digests(one)
    with loader(whole, tmp_path, batch_size=2) as one:
        expected = {clip for clip in digests(one) if clip[0] not in BAD}
    assert len(got) == len(set(got))
    assert set(got) == expected
    assert sorted(entry["row"] for entry in entries(tmp_path)) == sorted(BAD)


@pytest.mark.parametrize("lost", ["the file", "its folder", "the right to read it"])
def test_a_file_in_place_that_was_gone_is_read_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """As after a mount that failed: the quarantine does not name its clip for good."""
    folder, indexed = tmp_path / "root" / "videos", tmp_path / "indexed"
    folder.mkdir(parents=True)
    for n in range(3):
        write(Recipe(codec="mjpeg", container="avi", width=64, height=64, frames=12, seed=n), folder / f"{n}.avi")
    sv.index(folder, indexed, progress=False)
    expected = samples(epochs(loader(indexed, tmp_path)))
    file, aside = folder / "1.avi", tmp_path / "aside"
    moved = file if lost == "the file" else folder
    with monkeypatch.context() as patch:
        if lost == "the right to read it":
            opened, access = os.open, os.access

            def refused(path: Any, *args: Any, **options: Any) -> int:
                if str(path) == str(file):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                return opened(path, *args, **options)

            patch.setattr(os, "open", refused)
            patch.setattr(os, "access", lambda path, mode: str(path) != str(file) and access(path, mode))
        else:
            moved.rename(aside)
        with contextlib.suppress(DatasetError), loader(indexed, tmp_path) as one:
            epochs(one)
    assert {entry["row"] for entry in entries(tmp_path)} == ({0, 1, 2} if lost == "its folder" else {1})
    denied = {"(Permission denied; check who owns it and its mode)" in entry["reason"] for entry in entries(tmp_path)}
    assert denied == {lost == "the right to read it"}
    if aside.exists():
        aside.rename(moved)
    with loader(indexed, tmp_path) as one:
        assert_good_ones(samples(epochs(one)), expected, set())
