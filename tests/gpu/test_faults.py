"""Faults on a GPU: bad clips, engines that err, hang or are lost, and CUDA errors that the process cannot survive."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamvid as sv
from streamvid.decode import gpu, nvdec
from streamvid.decode.dali import DaliDecoder
from streamvid.decode.deadline import Pace
from streamvid.decode.nvdec_library import native_library
from streamvid.decode.nvdec_worker import NvdecWorker
from tests.support.bad_clips import Batch, assert_good_ones, make_dataset, samples, with_zeroed
from tests.support.batches import same
from tests.support.dali_route import leave_to_dali

if torch.cuda.is_available():  # without a driver its import raises RuntimeError
    pytest.importorskip("PyNvVideoCodec")

CODECS = [("h264", "mp4"), ("vp9", "webm"), ("hevc", "mp4")] * 6
FLIPPED, ZEROED, INDEX, H264, VP9 = 0, 5, 8, 12, 13
"""What is done to these clips: a bit flipped, packets overwritten, in the shard; a frame index; the last two when they
were packed."""
SUSPECTS = {FLIPPED: "shard", ZEROED: "shard", INDEX: "index", H264: "source", VP9: "source"}
OPTIONS: dict[str, Any] = {"sampling": sv.Window(3), "seed": 5}
KINDS = ["default", "dali", "random"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("whole"), CODECS, shard_size=20_000)


@pytest.fixture(scope="module")
def damaged(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = with_zeroed(whole, tmp_path_factory.mktemp("damaged") / "set", H264, VP9)
    with_zeroed(whole, path, ZEROED, source=False)
    opened = sv.Dataset.open(path)
    for row, extension, begin, size in (
        (FLIPPED, "tar", int(opened.clips.mp4_offset[FLIPPED]), opened.index(FLIPPED)),
        (INDEX, "packets", int(opened.clips.index_offset[INDEX]), None),
    ):
        with open(opened.shard_path(int(opened.clips.shard[row]), extension), "r+b") as file:
            # The middle of every packet, as only some are wanted; or bytes of the index.
            places = [begin + 40] if size is None else begin + size.offset + size.size // 2
            for place in list(places):
                file.seek(int(place))
                (value,) = file.read(1)
                file.seek(int(place))
                file.write(bytes([value ^ 16]))
    return path


def loader(kind: str, path: Path, folder: Path, **options: Any) -> sv.StreamLoader | sv.GpuDataLoader:
    quarantine = {"quarantine": folder / "quarantine"}
    if kind == "random":
        clips = sv.ClipDataset(path, checksum=options.pop("checksum", "crc32c"), **OPTIONS)
        return sv.GpuDataLoader(clips, batch_size=4, device="cuda", num_threads=2, **{**quarantine, **options})
    given: dict[str, Any] = {"batch_size": 4, "device": "cuda", "num_threads": 2, "engine": kind, **OPTIONS}
    return sv.StreamLoader(path, **{**given, **quarantine, **options})


def batches_of(one: sv.StreamLoader | sv.GpuDataLoader, epochs: int = 2) -> list[Batch]:
    return [batch for _ in range(epochs) for batch in one]


Runs = Callable[[str], list[Batch]]


@pytest.fixture(scope="module")
def undamaged(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The batches of two epochs of each kind of loader, where nothing is wrong."""
    known: dict[str, list[Batch]] = {}

    def run(kind: str) -> list[Batch]:
        if kind not in known:
            folder = tmp_path_factory.mktemp(kind)
            with loader(kind, whole, folder) as one:
                known[kind] = batches_of(one)
            assert not (folder / "quarantine").exists()
        return known[kind]

    return run


@pytest.mark.parametrize("on_error", ["skip", "mask"])
@pytest.mark.parametrize("kind", KINDS)
def test_bad_clips_cost_themselves(
    kind: str, on_error: Any, damaged: Path, undamaged: Runs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with loader(kind, damaged, tmp_path, on_error=on_error) as one:
        batches = batches_of(one)
        stats = one.stats()
    assert_good_ones(samples(batches), samples(undamaged(kind)), set(SUSPECTS))
    assert [len(batch["clip"]) for batch in batches] == [len(batch["clip"]) for batch in undamaged(kind)]
    for batch in batches:
        for n in (~batch["valid"]).nonzero().flatten().tolist():
            assert (int(batch["clip"][n]) in SUSPECTS) == (on_error == "mask")
            assert bool(batch["video"][n].any()) == (on_error == "skip")
    assert {clip.row: clip.suspect for clip in stats.bad} == SUSPECTS
    lines = (tmp_path / "quarantine" / "0.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["row"] for line in lines) == sorted(SUSPECTS)
    assert len([record for record in caplog.records if "bad clip" in record.message]) == len(SUSPECTS)
    # Whoever resumes meets none of them again.
    with loader(kind, damaged, tmp_path, on_error=on_error) as one:
        again = batches_of(one)
        assert one.stats().bad_clips == 0
    assert_good_ones(samples(again), samples(undamaged(kind)), set(SUSPECTS))


@pytest.mark.parametrize("kind", KINDS)
def test_they_may_be_too_many_or_not_allowed(kind: str, damaged: Path, undamaged: Runs, tmp_path: Path) -> None:
    with loader(kind, damaged, tmp_path / "raise", on_error="raise") as one, pytest.raises(sv.StreamvidError):
        batches_of(one)
    assert not (tmp_path / "raise" / "quarantine").exists()
    got = []
    with loader(kind, damaged, tmp_path, max_errors=1) as one:
        try:
            for batch in one:
                got.append(batch)
        except sv.DatasetError as error:
            state = one.state_dict()
            assert "more than max_errors=1" in str(error)  # noqa: PT017
    with loader(kind, damaged, tmp_path) as one:
        one.load_state_dict(state)
        got += batches_of(one, 1)
    first = samples(undamaged(kind)[: len(undamaged(kind)) // 2])
    assert_good_ones(samples(got), first, set(SUSPECTS))


@pytest.mark.parametrize("kind", KINDS)
def test_damage_that_nothing_notices_stays_in_its_clip(kind: str, whole: Path, undamaged: Runs, tmp_path: Path) -> None:
    """Without checksums, whatever decoders make of it: clips that share a session or a stream with it are right."""
    shutil.copytree(whole, tmp_path / "set")
    dataset, rng, bad = sv.Dataset.open(whole), np.random.default_rng(3), (3, 4, 5, 12, 13, 14)
    for row in bad:
        index = dataset.index(row)
        with open(
            tmp_path / "set" / "shards" / Path(dataset.shard_path(int(dataset.clips.shard[row]))).name, "r+b"
        ) as file:
            for offset, size in zip(index.offset.tolist(), index.size.tolist(), strict=True):
                # Behind the packet's header: half of it is noise.
                file.seek(int(dataset.clips.mp4_offset[row]) + offset + size // 2)
                file.write(rng.bytes(size // 2))
    with loader(kind, tmp_path / "set", tmp_path, checksum=None) as one:
        got = samples(batches_of(one))
    expected = {place: sample for place, sample in samples(undamaged(kind)).items() if place[1] not in bad}
    assert_good_ones({place: sample for place, sample in got.items() if place[1] not in bad}, expected, set())


class FaultySession:
    """A decode session of the native module that fails in its n-th call, counted over all of them."""

    def __init__(self, session: Any, fault: str, at: int) -> None:
        self._session, self._fault, self._at = session, fault, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def decode(self, number: int, jobs: Any) -> None:
        n = next(Faulty.calls)
        if n == self._at and self._fault == "hang":
            Faulty.hangs.wait(120)
        if n != self._at or self._fault != "error":
            self._session.decode(number, jobs)
        if n == self._at and self._fault != "hang":
            raise RuntimeError("CUDA_ERROR_UNKNOWN of one session")


class Faulty:
    """A decoder of PyNvVideoCodec that fails in its n-th call, counted over all of them."""

    calls = count(1)
    hangs = threading.Event()

    def __init__(self, decoder: Any, fault: str, at: int) -> None:
        self._decoder, self._fault, self._at = decoder, fault, at

    def Decode(self, packet: Any) -> list[Any]:  # noqa: N802
        n = next(self.calls)
        if n == self._at and self._fault == "error":
            raise RuntimeError("CUDA_ERROR_UNKNOWN of one session")
        if n == self._at and self._fault == "hang":
            self.hangs.wait(120)
        frames = list(self._decoder.Decode(packet))
        return frames[:-1] * 3 if n == self._at and self._fault == "garbage" and frames else frames


@pytest.fixture(params=["native", "pynv"])
def faulty(
    request: pytest.FixtureRequest, undamaged: Runs, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, int], None]]:
    native = request.param == "native"
    if native and native_library() is None:
        pytest.skip("the native module was not built")
    if "kind" in request.node.callspec.params:  # what is expected is decoded with nothing patched
        undamaged(request.node.callspec.params["kind"])
    name, wrapped = ("_open_session", FaultySession) if native else ("_open", Faulty)
    opened: Callable[..., Any] = getattr(NvdecWorker, name)
    monkeypatch.setattr(nvdec, "native_library", native_library if native else lambda: None)
    if request.node.callspec.params["fault"] == "hang":  # where nothing hangs, a slow machine must not be taken for it
        monkeypatch.setattr(nvdec, "Pace", partial(Pace, least_s=3.0))
        monkeypatch.setattr(gpu, "Pace", partial(Pace, least_s=3.0))
    Faulty.calls, Faulty.hangs = count(1), threading.Event()

    def install(fault: str, at: int) -> None:
        monkeypatch.setattr(NvdecWorker, name, lambda *given: wrapped(opened(*given), fault, at))

    yield install
    Faulty.hangs.set()
    end = time.monotonic() + 60
    while time.monotonic() < end and any(thread.name.startswith("streamvid-nvdec") for thread in threading.enumerate()):
        time.sleep(0.1)


@pytest.mark.parametrize("on_error", ["skip", "raise"])
@pytest.mark.parametrize("fault", ["error", "hang", "garbage"])
@pytest.mark.parametrize("kind", ["default", "random"])
def test_an_engine_that_fails_costs_no_frame(
    kind: str, fault: str, on_error: Any, whole: Path, undamaged: Runs, tmp_path: Path,
    faulty: Callable[[str, int], None], caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    with loader(kind, whole, tmp_path, on_error=on_error) as one:
        # Behind the calls of the preflight check.
        faulty(fault, 12)
        batches = batches_of(one)
        assert one.stats().bad_clips == 0
        if fault == "hang":
            assert "has not answered" in caplog.text
            assert "abandoned" in caplog.text
            # What wakes up late writes into nothing that was delivered.
            Faulty.hangs.set()
            time.sleep(0.5)
            torch.cuda.synchronize()
    assert next(Faulty.calls) > 12
    expected = undamaged(kind)
    assert len(batches) == len(expected)
    for got, right in zip(batches, expected, strict=True):
        assert same(got, right)
    assert not (tmp_path / "quarantine").exists()


@pytest.mark.parametrize("faulty", ["pynv"], indirect=True)
@pytest.mark.parametrize("fault", ["error", "hang"])
def test_a_dali_decoder_that_fails_costs_no_frame(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    faulty: Callable[[str, int], None], caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    leave_to_dali(monkeypatch, "mpeg4")
    (tmp_path / "mixed").mkdir()
    path = make_dataset(tmp_path / "mixed", [("h264", "mp4"), ("mpeg4", "mp4")] * 6, shard_size=20_000)
    with loader("default", path, tmp_path) as one:
        expected = batches_of(one)
    run, calls = DaliDecoder.run, count(1)

    def fails(decoder: DaliDecoder, slices: Any) -> Any:
        if next(calls) == 2:
            if fault == "error":
                raise sv.VideoError("nvml error")
            Faulty.hangs.wait(120)
        return run(decoder, slices)

    with loader("default", path, tmp_path) as one:
        monkeypatch.setattr(DaliDecoder, "run", fails)
        batches = batches_of(one)
    assert ("DALI has not decoded" in caplog.text) == (fault == "hang")
    assert all(same(got, right) for got, right in zip(batches, expected, strict=True))
    assert not (tmp_path / "quarantine").exists()


LOST = """
import logging, sys, time
import torch, triton
import triton.language as tl
import streamvid as sv

@triton.jit
def write_far_away(at, offset):
    tl.store(at + offset, 1)

logging.basicConfig(level=logging.WARNING)
kind, path, then = sys.argv[1:]
options = {"sampling": sv.Window(3), "seed": 5}
if kind == "random":
    loader = sv.GpuDataLoader(sv.ClipDataset(path, **options), batch_size=2, device="cuda", num_workers=1)
else:
    loader = sv.StreamLoader(path, batch_size=2, device="cuda", engine=kind, **options)
memory = torch.zeros(1, dtype=torch.int32, device="cuda")
for step, batch in enumerate(batch for _ in range(1000) for batch in loader):
    print("batch", step, flush=True)
    if step == 2:
        write_far_away[(1,)](memory, 1 << 44)
        print("begun", time.time(), flush=True)
        if then == "sleep":
            time.sleep(600)
    if then == "catch" and step >= 2:
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            print("caught", error, flush=True)
            time.sleep(600)
print("over", flush=True)
"""


@pytest.mark.parametrize(
    ("kind", "then"), [("default", "go on"), ("dali", "go on"), ("random", "go on"), ("default", "sleep"),
                       ("default", "catch")],
)  # fmt: skip
def test_a_process_that_has_lost_its_gpu_ends(kind: str, then: str, whole: Path, tmp_path: Path) -> None:
    (tmp_path / "lost.py").write_text(LOST)
    command = [sys.executable, str(tmp_path / "lost.py"), kind, str(whole), then]
    path = os.pathsep.join([str(Path(sv.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    printed, errors = process.communicate(timeout=120)
    ended = time.time()
    print(printed, errors)
    begun = [float(line.split()[1]) for line in printed.splitlines() if line.startswith("begun")]
    print("ended after", [ended - one for one in begun], "with", process.returncode)
    assert begun
    assert "over" not in printed
    assert process.returncode != 0
    assert "is lost to this process" in errors
    assert "the run stands in epoch" in errors
    assert not (tmp_path / "quarantine").exists()
