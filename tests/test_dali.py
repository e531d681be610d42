"""`sv.dali.pipeline` and `sv.dali.iterator`: the samples are the default engine's, epochs and sizes are DALI's own."""

from __future__ import annotations

import gc
import json
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamvid as sv
from streamvid.errors import InputError, StreamvidError
from streamvid.packing.options import PackOptions
from tests.support.packed import pack_recipes, replace_packets
from tools.clips import Recipe

VP9 = Recipe(codec="vp9", container="webm", width=96, height=64, gop=8)
RAW = sv.Transform(layout="THWC", dtype="uint8", color="bt601")
CLIPS = 7
OPTIONS: dict[str, Any] = {"batch_size": 2, "device": "cpu", "num_threads": 2, "seed": 5}
COLUMNS = ("mask", "pts", "label", "clip", "valid", "epoch")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven clips of different lengths in three shards."""
    recipes = {f"{n}.webm": replace(VP9, frames=12 + 5 * n, seed=n) for n in range(CLIPS)}
    packed = pack_recipes(recipes, tmp_path_factory.mktemp("plain"), shard_size=20_000, options=PackOptions("any"))
    assert len(sv.Dataset.open(packed).shards) >= 2
    return packed


def handed_out(iterator: Any) -> list[dict[str, torch.Tensor]]:
    return [batch for (batch,) in iterator]


@pytest.mark.parametrize(
    ("options", "epoch"),
    [
        ({"sampling": sv.Window(4, stride=2)}, 0),
        ({"sampling": sv.Window(9, fps=12, pad="constant")}, 3),
        ({"sampling": sv.TiledWindows(5, stride=2, pad="reflect_101"), "shuffle": False}, 1),
        ({"sampling": sv.Uniform(6), "rank": 1, "world_size": 2}, 0),
        ({"sampling": sv.MultiRate([(2, 5.0), (3, 10)], pad="reflect_1001"), "shuffle": "block"}, 2),
        (
            {"sampling": sv.Frames([4, 0, 4, 30], pad="constant"), "transform": {"a": RAW, "b": replace(RAW, crop=32)}},
            0,
        ),
    ],
)
def test_samples_are_those_of_the_default_engine(packed: Path, options: dict[str, Any], epoch: int) -> None:
    options = {"transform": RAW} | OPTIONS | options
    made = handed_out(sv.dali.iterator(sv.dali.pipeline(packed, epoch=epoch, **options), last_batch_policy="partial"))
    with sv.StreamLoader(packed, **options) as loader:
        loader.set_epoch(epoch)
        expected: list[Any] = [batch for batch in loader if batch["valid"].any()]
    assert len(made) == len(expected)
    for one, two in zip(made, expected, strict=True):
        assert set(one) == set(two) - {"key"}
        for name, value in one.items():
            assert value.dtype == two[name].dtype
            assert torch.equal(value, two[name]), name


def test_it_goes_on_where_a_loader_was(packed: Path) -> None:
    options = {"sampling": sv.Window(4), "transform": RAW, **OPTIONS}
    with sv.StreamLoader(packed, **options) as loader:
        batches = iter(loader)
        next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        rest: list[Any] = list(batches)
    pipe = sv.dali.pipeline(packed, state=state, **options)
    for one, two in zip(handed_out(sv.dali.iterator(pipe, last_batch_policy="partial")), rest, strict=True):
        assert torch.equal(one["video"], two["video"])
        assert torch.equal(one["clip"], two["clip"])


@pytest.mark.parametrize(
    ("policy", "batch_size", "auto_reset", "padded"),
    [
        ("fill", 2, True, True),
        ("fill", 3, False, False),
        ("fill", 3, True, True),
        ("fill", 10, True, False),
        ("drop", 2, False, True),
        ("drop", 3, True, False),
        ("drop", 3, False, True),
        ("partial", 2, True, False),
        ("partial", 3, False, True),
        ("partial", 7, False, False),
    ],
)
def test_epochs_are_those_of_dali(packed: Path, policy: Any, padded: bool, auto_reset: bool, batch_size: int) -> None:
    """Against a reader of DALI's own over as many samples: lengths, sizes, and which sample comes where."""
    options = {"sampling": sv.Window(3), "transform": RAW, **OPTIONS, "batch_size": batch_size}
    pipe = sv.dali.pipeline(packed, pad_last_batch=padded, **options)
    ours = sv.dali.iterator(pipe, last_batch_policy=policy, auto_reset=auto_reset)
    theirs = stock_iterator(batch_size, padded, policy, auto_reset)
    assert (len(ours), ours.size) == (len(theirs), theirs.size)
    with sv.StreamLoader(packed, **options) as loader:
        whole: list[Any] = list(loader)
    order = [clip for batch in whole for clip in batch["clip"].tolist()]
    frames = {
        clip: video for batch in whole for clip, video in zip(batch["clip"].tolist(), batch["video"], strict=True)
    }
    for _ in range(3):
        expected = [batch["number"].flatten().tolist() for (batch,) in theirs]
        made = handed_out(ours)
        assert [batch["clip"].tolist() for batch in made] == [[order[n] for n in one] for one in expected]
        for batch in made:
            assert all(map(torch.equal, batch["video"], [frames[clip] for clip in batch["clip"].tolist()]))
        if not auto_reset:
            ours.reset()
            theirs.reset()
        assert len(ours) == len(theirs)


def stock_iterator(batch_size: int, padded: bool, policy: str, auto_reset: bool) -> Any:
    """DALI's iterator over DALI's reader of seven files, of which each holds its number."""
    import tempfile

    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    folder = Path(tempfile.mkdtemp())
    for n in range(CLIPS):
        (folder / str(n)).write_bytes(bytes([n]))

    @pipeline_def(batch_size=batch_size, num_threads=1, device_id=None)
    def numbers() -> Any:
        content, _ = fn.readers.file(
            files=[str(folder / str(n)) for n in range(CLIPS)], name="reader", pad_last_batch=padded
        )
        return fn.reinterpret(content, dtype=types.UINT8)

    return DALIGenericIterator(
        numbers(),
        ["number"],
        reader_name="reader",
        last_batch_policy=LastBatchPolicy[policy.upper()],
        auto_reset=auto_reset,
    )


def test_sizes_as_numbers(packed: Path) -> None:
    """DALI's older way: `size`, and `last_batch_padded` by hand."""
    options = {"sampling": sv.Window(3), "transform": RAW, **OPTIONS}
    with pytest.warns(Warning, match="reader_name"):
        iterator = sv.dali.iterator(sv.dali.pipeline(packed, **options), size=5, last_batch_policy="partial")
    assert len(iterator) == 3
    assert [len(batch["clip"]) for batch in handed_out(iterator)] == [2, 2, 1]
    with pytest.raises(AssertionError, match="size should not be set"):
        sv.dali.iterator(sv.dali.pipeline(packed, **options), size=5, reader_name="clips")


def test_the_reader_has_its_name(packed: Path) -> None:
    pipe = sv.dali.pipeline(packed, sampling=sv.Window(3), reader_name="Reader", pad_last_batch=True, **OPTIONS)
    pipe.build()
    meta = pipe.reader_meta("Reader")
    assert (meta["epoch_size"], meta["epoch_size_padded"], meta["pad_last_batch"]) == (CLIPS, CLIPS, True)
    assert pipe.exec_dynamic


def test_operators_of_ones_own(packed: Path) -> None:
    """Nodes by name, inside DALI's own pipeline; other outputs."""
    from nvidia.dali import fn, types

    pipe = sv.dali.pipeline(packed, sampling=sv.Window(3), transform=RAW, **OPTIONS)
    assert list(pipe.nodes) == ["video", *COLUMNS] == list(pipe.names)
    with pipe:
        video = pipe.nodes["video"]
        means = fn.reductions.mean(fn.cast(video, dtype=types.FLOAT), axes=[1, 2, 3])
        pipe.set_outputs(255 - video, means, pipe.nodes["clip"])
    made = handed_out(sv.dali.iterator(pipe, ["negative", "mean", "clip"], last_batch_policy="partial"))
    with sv.StreamLoader(packed, sampling=sv.Window(3), transform=RAW, **OPTIONS) as loader:
        for one, two in zip(made, loader, strict=True):
            assert torch.equal(255 - one["negative"], two["video"])  # type: ignore[typeddict-item]
            torch.testing.assert_close(one["mean"], two["video"].float().mean((2, 3, 4)))  # type: ignore[typeddict-item]


def test_a_pipeline_runs_without_iterator_and_dynamic_executor(packed: Path) -> None:
    """Without PyTorch's iterator, and without exec_dynamic."""
    pipe = sv.dali.pipeline(packed, sampling=sv.Window(3), transform=RAW, exec_dynamic=False, **OPTIONS)
    assert not pipe.exec_dynamic
    video, *_, clip, _, _ = pipe.run()
    assert np.array(video.as_tensor()).shape == (2, 3, 64, 96, 3)
    assert len(np.array(clip.as_tensor())) == 2


def test_a_pipelines_files_are_removed_with_it(packed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pipe = sv.dali.pipeline(packed, sampling=sv.Window(3), transform=RAW, **OPTIONS)
    pipe.run()
    assert list(tmp_path.iterdir())
    del pipe
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_a_damaged_clip_is_an_error_that_names_it(packed: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(packed, tmp_path / "set")
    replace_packets(tmp_path / "set", 3, bytes)
    pipe = sv.dali.pipeline(tmp_path / "set", sampling=sv.Window(3), shuffle=False, **OPTIONS)
    with pytest.raises((StreamvidError, RuntimeError), match=sv.Dataset.open(packed).key(3)):
        handed_out(sv.dali.iterator(pipe))


@pytest.mark.parametrize("given", [5, [], "pipeline"])
def test_an_iterator_over_something_else(given: Any) -> None:
    with pytest.raises(sv.InputError, match="iterator takes DALI pipelines"):
        sv.dali.iterator(given)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"outputs": "gpu"}, "without a GPU, video cannot be an output there"),
        ({"outputs": {"labels": "cpu"}}, "a name in outputs must be one of"),
        ({"outputs": {"label": "disk"}}, "the place of label in outputs"),
        ({"transform": sv.Transform(dtype="bfloat16")}, "DALI writes no bfloat16"),
        ({"reader_name": ""}, "reader_name must be a name"),
        ({"pad_last_batch": 1}, "pad_last_batch"),
        ({"prefetch_queue_depth": 0}, "prefetch_queue_depth"),
        ({"rank": 0, "world_size": 9, "batch_size": 1}, "has no samples"),
        ({"columns": ["score"]}, "takes no columns: its node `clip`"),
        ({"batch_fn": print}, "takes no batch_fn"),
        ({"smapling": sv.Window(3)}, "sampling"),
    ],
)
def test_invalid_options_of_a_pipeline_are_refused(packed: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises((InputError, TypeError), match=said):
        sv.dali.pipeline(packed, **{"sampling": sv.Window(3), **OPTIONS, **options})


def test_more_shards_than_files_may_be_open(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (101, 101))
    with pytest.raises(InputError, match="give shuffle=False"):
        sv.dali.pipeline(packed, sampling=sv.Window(3), **OPTIONS)
