"""The next epoch is begun while the last batch of one is made: its batches, and that dropped work leaves no threads."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamvid.arrays import Int64
from streamvid.decode.cpu import CpuDecoder
from streamvid.errors import DatasetError
from streamvid.fetch import epoch_reader
from streamvid.loader.clip_dataset import ClipDataset
from streamvid.loader.gpu_loader import GpuDataLoader
from streamvid.loader.quarantine import Quarantine
from streamvid.loader.stream_loader import StreamLoader
from streamvid.packing.options import PackOptions
from streamvid.plan.absent import AbsentRows
from streamvid.sampling.windows import Window
from tests.support.clock import soon
from tests.support.faulty_s3 import FaultyS3, faulty_s3
from tests.support.packed import pack_recipes
from tools.clips import Recipe

pytestmark = pytest.mark.usefixtures("no_threads_of_other_modules")
CLIPS, BATCH = 6, 2
STEPS = CLIPS // BATCH


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipes = {f"{n}": Recipe(width=96, height=64, frames=20, gop=10, seed=n) for n in range(CLIPS)}
    return pack_recipes(recipes, tmp_path_factory.mktemp("engine"), options=PackOptions("any"))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Clips of the batches that were submitted to decoders of CPUs."""
    counts: list[int] = []
    write = CpuDecoder.write

    def counted(self: CpuDecoder, slices: Any, sinks: Any) -> Any:
        counts.append(len(slices))
        return write(self, slices, sinks)

    monkeypatch.setattr(CpuDecoder, "write", counted)
    return counts


def loader(folder: Path, **options: Any) -> StreamLoader:
    defaults = {"batch_size": BATCH, "sampling": Window(4, fps=15), "num_threads": 2, "device": "cpu"}
    return StreamLoader(folder, **{**defaults, **options})


def epoch_of(folder: Path, number: int) -> list[torch.Tensor]:
    """What a loader that has done nothing before gives in an epoch."""
    with loader(folder) as fresh:
        fresh.set_epoch(number)
        return [batch["video"] for batch in fresh]


def assert_epoch(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other)


def test_from_the_second_epoch_on_the_first_batch_of_the_next_is_made_in_advance(
    folder: Path, written: list[int]
) -> None:
    with loader(folder) as batches:
        list(batches)
        assert len(written) == STEPS, "who goes through a dataset once pays for no other epoch"
        for number in (1, 2, 3):
            got = [batch["video"] for batch in batches]
            assert soon(lambda: len(written) > (number + 1) * STEPS)  # noqa: B023
            time.sleep(0.05)
            assert len(written) == (number + 1) * STEPS + 1, "one batch, not more"
            assert_epoch(got, epoch_of(folder, number))
            del written[(number + 1) * STEPS + 1 :]  # of the other loader
        threads = [one.name for one in threading.enumerate() if one.name.startswith("streamvid-decode_")]
        assert len(threads) == 2, "the threads of one decoder do both"


def test_what_was_begun_does_not_come_in_another_epoch(folder: Path) -> None:
    expected = [epoch_of(folder, number) for number in (7, 8, 2)]
    with loader(folder) as batches:
        list(batches), list(batches)
        state = batches.state_dict()
        batches.set_epoch(7)
        assert_epoch([batch["video"] for batch in batches], expected[0])
        assert_epoch([batch["video"] for batch in batches], expected[1])
        batches.load_state_dict(state)
        assert_epoch([batch["video"] for batch in batches], expected[2])


def test_an_epoch_left_with_its_last_batch(folder: Path) -> None:
    """The next one has begun, and goes on with the same decoder."""
    expected = epoch_of(folder, 2)
    with loader(folder) as batches:
        list(batches)
        for number, _ in enumerate(batches, 1):
            if number == STEPS:
                break
        assert_epoch([batch["video"] for batch in batches], expected)


@pytest.mark.parametrize("kind", ["StreamLoader", "GpuDataLoader"])
def test_a_loop_that_counts_batches_keeps_the_decoder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, written: list[int], kind: str
) -> None:
    """Lightning and Trainer take len(loader) batches, and ask for no other. With `isolate`, or on a GPU, a decoder is
    processes or sessions, which take seconds to begin."""
    made: list[CpuDecoder] = []
    begin = CpuDecoder.__init__

    def noted(self: CpuDecoder, *args: Any, **options: Any) -> None:
        made.append(self)
        begin(self, *args, **options)

    monkeypatch.setattr(CpuDecoder, "__init__", noted)
    clips = ClipDataset(folder, sampling=Window(4, fps=15))
    with loader(folder) if kind == "StreamLoader" else GpuDataLoader(clips, batch_size=BATCH, device="cpu") as batches:
        for _ in range(3):
            iteration = iter(batches)
            for _ in range(STEPS):
                next(iteration)
        del iteration
        assert len(made) == 1
        assert batches.epoch == 3
        if kind == "StreamLoader":
            assert soon(lambda: len(written) > 3 * STEPS)  # of the next epoch, begun early


@pytest.mark.parametrize("kind", ["StreamLoader", "GpuDataLoader"])
@pytest.mark.parametrize("ends", [True, False])
def test_an_iteration_that_outlives_its_loader_keeps_no_decoder(folder: Path, kind: str, ends: bool) -> None:
    """As in a function that takes len(loader) batches within `with loader`, and goes on after it."""
    before = threading.enumerate()
    clips = ClipDataset(folder, sampling=Window(4, fps=15))
    with loader(folder) if kind == "StreamLoader" else GpuDataLoader(clips, batch_size=BATCH, device="cpu") as batches:
        iteration = iter(batches)
        for _ in range(STEPS):
            next(iteration)
    if ends:
        assert next(iteration, None) is None
    del iteration
    assert soon(lambda: not [one for one in threading.enumerate() if one not in before])


def test_a_clip_that_is_found_bad_meanwhile_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another rank, or in the last batches."""
    known: list[int] = []

    def absent(self: Quarantine) -> AbsentRows:
        rows: Int64 = np.array(known, dtype=np.int64)
        return AbsentRows(rows)

    monkeypatch.setattr(Quarantine, "absent", absent)
    with loader(folder) as batches:
        list(batches), list(batches)
        known.append(3)
        clips = np.concatenate([batch["clip"].numpy() for batch in batches])
        assert 3 not in clips
        assert len(clips) == CLIPS


def test_an_error_of_the_next_epoch_comes_in_its_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    write = CpuDecoder.write

    def fails(self: CpuDecoder, slices: Any, sinks: Any) -> Any:
        calls.append(len(slices))
        if len(calls) == 2 * STEPS + 1:
            raise OSError("no memory is left")
        return write(self, slices, sinks)

    monkeypatch.setattr(CpuDecoder, "write", fails)
    with loader(folder) as batches:
        list(batches)
        assert len(list(batches)) == STEPS
        assert soon(lambda: len(calls) > 2 * STEPS)
        with pytest.raises(OSError, match="no memory is left"):
            list(batches)


@pytest.mark.parametrize("end", ["close", "drop"])
def test_what_was_begun_ends_with_its_loader(folder: Path, end: str, written: list[int]) -> None:
    batches = loader(folder)
    list(batches), list(batches)
    assert soon(lambda: len(written) > 2 * STEPS)
    gc.disable()
    try:
        if end == "close":
            batches.close()
        del batches
        assert soon(lambda: not [one for one in threading.enumerate() if one.name.startswith("streamvid")])
    finally:
        gc.enable()


def test_two_iterations_at_a_time_share_a_decoder_on_a_cpu(folder: Path) -> None:
    with loader(folder) as batches:
        one, other = iter(batches), iter(batches)
        pairs = list(zip(one, other, strict=True))
        assert_epoch([first["video"] for first, _ in pairs], epoch_of(folder, 0))
        assert_epoch([second["video"] for _, second in pairs], epoch_of(folder, 1))
        list(batches)


@pytest.fixture
def remote(folder: Path, tmp_path: Path) -> Iterator[tuple[FaultyS3, dict[str, Any]]]:
    """A bucket with the dataset, and the options of a loader that reads it by range."""
    with faulty_s3() as s3:
        s3.add_folder(folder, "bucket/set")
        yield s3, {"fetch": "ranges", "cache_dir": tmp_path, "cache_bytes": 100_000}


def test_ranges_of_the_next_epoch_are_read_as_soon_as_all_of_this_one_are(
    folder: Path, remote: tuple[FaultyS3, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, options = remote
    read: list[tuple[int, int]] = []  # the epochs' steps
    plan_parts = epoch_reader.plan_parts

    def noted(dataset: Any, parts: Any, *args: Any) -> Any:
        read.extend((int(step.passes[0]), step.number) for part in parts for step in part)
        return plan_parts(dataset, parts, *args)

    monkeypatch.setattr(epoch_reader, "plan_parts", noted)
    expected = [epoch_of(folder, number) for number in range(6)]
    del read[:]
    with loader("s3://bucket/set", **options) as batches:  # type: ignore[arg-type]
        for number in (0, 1):
            assert_epoch([batch["video"] for batch in batches], expected[number])
        assert not soon(lambda: len(read) > 2 * STEPS, 0.3), "who goes through a dataset twice pays for no other epoch"
        for number in (2, 3):
            assert_epoch([batch["video"] for batch in batches], expected[number])
            assert soon(lambda: len(read) == (number + 2) * STEPS), "what was read is not read again"  # noqa: B023
        batches.set_epoch(5)
        assert_epoch([batch["video"] for batch in batches], expected[5])
    left = [one.name for one in threading.enumerate() if one.name.startswith("streamvid")]
    assert not left


def test_a_storage_that_fails_ahead_of_the_next_epoch_fails_in_that(
    folder: Path, remote: tuple[FaultyS3, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, options = remote
    plan_parts = epoch_reader.plan_parts

    def broken(dataset: Any, parts: Any, *args: Any) -> Any:
        if parts[0][0].passes[0] == 3:
            raise DatasetError("the storage is gone")
        return plan_parts(dataset, parts, *args)

    monkeypatch.setattr(epoch_reader, "plan_parts", broken)
    with loader("s3://bucket/set", **options) as batches:  # type: ignore[arg-type]
        assert [len(list(batches)) for _ in range(3)] == [STEPS] * 3
        with pytest.raises(DatasetError, match="gone"):
            list(batches)
