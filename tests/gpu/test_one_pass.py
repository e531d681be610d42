"""One pass from NVDEC's surfaces to the batch: the pixels, whoever decodes, and the memory that they are in."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch

import streamvid as sv
from streamvid.decode.nvdec_worker import NvdecWorker
from streamvid.fetch.encoded_batch import EncodedBatch
from streamvid.packing.options import PackOptions
from streamvid.transform.render import CpuRenderer
from streamvid.transform.spec import Transform
from tests.support.dali_route import leave_to_dali
from tests.support.packed import pack_recipes
from tests.transform.test_gpu_pictures import MEAN, STD, TRANSFORMS, assert_same, batch, opened, rendered
from tools.clips import Recipe

if torch.cuda.is_available():  # without a driver its import raises RuntimeError
    pytest.importorskip("PyNvVideoCodec")

__all__ = ["batch"]

COLOURFUL = Transform(
    random_short_side=(64, 90), crop=56, horizontal_flip=0.5, mean=MEAN, std=STD, dtype="float16",
    brightness=0.4, contrast=0.5, saturation=0.6, hue=40, grayscale=0.3,
)  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_batch_is_that_of_the_cpu_whoever_decodes(
    name: str, batch: EncodedBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    transform = TRANSFORMS[name]
    expected = CpuRenderer(transform, threads=2)._submit(batch).result().tensors
    made = []
    for engines, cores in ((2, 0), (0, 2)):
        with opened(monkeypatch, engines, cores) as decoder:
            made += [rendered(transform, decoder, batch) for _ in range(2)]
            assert_same(rendered(transform, decoder, batch, np.ones(8, dtype=bool)), expected, transform)
    assert_same(made[0], expected, transform)
    for other in made[1:]:
        for tensor, same in zip(made[0].values(), other.values(), strict=True):
            assert torch.equal(tensor, same)


def test_colours_change_alike_whoever_decodes(batch: EncodedBatch, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for engines, cores in ((2, 0), (0, 2)):
        with opened(monkeypatch, engines, cores) as decoder:
            made.append(rendered(COLOURFUL, decoder, batch))
            assert_same(rendered(COLOURFUL, decoder, batch, np.ones(8, dtype=bool)), made[-1], COLOURFUL, most=4)
    assert torch.equal(made[0]["video"], made[1]["video"])


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipes = {
        f"{n}": Recipe(
            codec="hevc" if n % 3 == 2 else "h264", width=640 + 64 * (n % 2), height=360, frames=60, gop=15, b_frames=2,
            seed=n, style="texture",
        )
        for n in range(8)
    }  # fmt: skip
    return pack_recipes(recipes, tmp_path_factory.mktemp("dataset"))


TRAIN = Transform(random_short_side=(256, 320), crop=224, horizontal_flip=0.5, mean=MEAN, std=STD, dtype="float16")


@pytest.mark.parametrize("sampling", [sv.Window(16, fps=30), sv.Window(8, fps=3)], ids=["dense", "sparse"])
def test_epochs_of_both_loaders_are_those_of_the_cpu(sampling: Any, dataset: Path) -> None:
    """Dense windows are read from the decoder's own surfaces, sparse ones from copies."""
    made = {}
    for device in ("cuda", "cpu"):
        with sv.StreamLoader(
            dataset, batch_size=4, sampling=sampling, transform=TRAIN, device=device, seed=1
        ) as loader:  # fmt: skip
            made[device] = [
                {key: value.cpu() if isinstance(value, torch.Tensor) else value for key, value in one.items()}
                for _ in range(3)
                for one in loader
            ]
    for on_gpu, on_cpu in zip(made["cuda"], made["cpu"], strict=True):
        tensors = {name: one for name, one in on_cpu.items() if isinstance(one, torch.Tensor)}
        assert on_gpu["key"] == on_cpu["key"]
        assert_same({name: on_gpu[name] for name in tensors}, tensors, TRAIN)
    clips = sv.ClipDataset(dataset, sampling=sampling, transform=TRAIN, seed=1)
    made = {}
    for device in ("cuda", "cpu"):
        with sv.GpuDataLoader(clips, batch_size=3, num_workers=2, device=device) as random_access:
            made[device] = [one["video"].cpu() for one in random_access]
    for a, b in zip(made["cuda"], made["cpu"], strict=True):
        assert_same({"video": a}, {"video": b}, TRAIN)


def test_memory_of_a_batch_is_not_decoded_to_while_work_that_reads_it_is_queued(dataset: Path) -> None:
    """The loop drops a batch behind kernels that still have to read it."""
    options: dict[str, Any] = {"batch_size": 4, "sampling": sv.Window(16, fps=30), "transform": TRAIN, "seed": 1}
    with sv.StreamLoader(dataset, device="cuda", **options) as loader:
        expected = [one["video"].cpu() for _ in range(6) for one in loader]
    with sv.StreamLoader(dataset, device="cuda", **options) as loader:
        copies = []
        for _ in range(6):
            for one in loader:
                torch.cuda._sleep(200_000_000)  # 0.1 s
                copies.append(one["video"].clone())
                del one
    for made, other in zip(copies, expected, strict=True):
        assert torch.equal(made.cpu(), other)


def test_a_session_that_fails_beside_others_costs_no_frame(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was launched for a job that is decoded anew writes nothing afterwards, and its surfaces are still there."""
    options: dict[str, Any] = {"batch_size": 4, "sampling": sv.Window(16, fps=30), "transform": TRAIN, "seed": 1}
    with sv.StreamLoader(dataset, device="cuda", **options) as loader:
        expected = [[one["video"].cpu() for one in loader] for _ in range(2)]
    begin, calls, spoiled = NvdecWorker._open_session, count(1), Event()

    class Failing:
        def __init__(self, session: Any) -> None:
            self._session = session

        def __getattr__(self, name: str) -> Any:
            return getattr(self._session, name)

        def decode(self, number: int, jobs: Any) -> None:
            self._session.decode(number, jobs)
            if spoiled.is_set() and jobs[0].retry_of is None and next(calls) in (2, 5, 8):
                raise RuntimeError("CUDA_ERROR_UNKNOWN")

    monkeypatch.setattr(NvdecWorker, "_open_session", lambda *given: Failing(begin(*given)))
    with sv.StreamLoader(dataset, device="cuda", **options) as loader:
        for epoch in expected:
            for one, other in zip(loader, epoch, strict=True):
                assert torch.equal(one["video"].cpu(), other)
            # Not before: what fails twice when clips are tried before the first batch goes to cores for the whole run.
            spoiled.set()
    assert next(calls) > 8


def test_what_dali_decodes_gets_there_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Corrected, and in the other order."""
    leave_to_dali(monkeypatch, "mpeg4")
    recipes = {
        f"{n}": Recipe(codec="mpeg4" if n < 2 else "h264", width=320, height=240, frames=20, seed=n) for n in range(3)
    }
    pack_recipes(recipes, tmp_path, options=PackOptions("any"))
    transform = Transform(random_short_side=(128, 160), crop=112, horizontal_flip=0.5, dtype="uint8")
    made = []
    for device in ("cuda", "cpu"):
        with sv.StreamLoader(
            tmp_path / "set", batch_size=3, sampling=sv.Window(4), transform=transform, device=device, seed=2
        ) as loader:  # fmt: skip
            made += [one["video"].cpu().float() for one in loader]
            assert {one.decoder for one in loader.routes} == ({"nvdec", "dali"} if device == "cuda" else {"cpu"})
    assert (made[0] - made[1]).abs().mean() < 1.5
