"""The errors of loaders when a GPU is lost, with simulated responses of the driver, as there is no GPU here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import streamvid as sv
from streamvid.decode import lost_gpu
from streamvid.decode.lost_gpu import GpuWatch
from streamvid.errors import GpuLostError
from tests.support.bad_clips import make_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("lost"), [("h264", "mp4")] * 8)


@pytest.mark.parametrize("kind", ["stream", "random"])
def test_the_error_names_the_place_that_a_saved_state_has(
    kind: str, dataset: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken: list[str] = []
    ends: list[float] = []
    monkeypatch.setattr(lost_gpu, "lost", lambda device: broken[0] if broken else None)
    monkeypatch.setattr(lost_gpu, "_ENDING", lost_gpu._Ending())
    monkeypatch.setattr(lost_gpu._Ending, "catch_terminate", lambda ending: None)
    monkeypatch.setattr(lost_gpu.faulthandler, "dump_traceback_later", lambda seconds, **_: ends.append(seconds))
    monkeypatch.setattr(lost_gpu.signal, "setitimer", lambda which, seconds: ends.append(seconds))
    options: dict[str, Any] = {"batch_size": 2, "device": "cpu"}
    loader: Any
    if kind == "stream":
        loader = sv.StreamLoader(dataset, sampling=sv.Window(3), **options)
    else:
        loader = sv.GpuDataLoader(sv.ClipDataset(dataset, sampling=sv.Window(3)), **options)
    loader._watch = GpuWatch(0, loader._position.where)
    with loader:
        batches = iter(loader)
        next(batches)
        next(batches)
        state = loader.state_dict()
        broken.append("CUDA_ERROR_LAUNCH_FAILED, 719")
        monkeypatch.setattr(sv.Dataset, "key", lambda *_: 1 // 0)  # any error that the loss may have caused
        with pytest.raises(GpuLostError, match=r"719.* the run stands in epoch 0 behind batch 2") as error:
            next(batches)
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    if kind == "stream":
        assert str(state["segments"]) in str(error.value)
    assert len([record for record in caplog.records if record.levelname == "CRITICAL"]) == 1
    assert ends == [8.0, 9.0]
