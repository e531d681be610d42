"""`sv.dali.export`: the model's tensors are those of `engine="dali"`, bit for bit; its files are what Triton reads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import streamvid as sv
from streamvid.arrays import Int64
from streamvid.dali_engine import chunk_pipeline
from streamvid.fetch.encoded_batch import EncodedBatch
from streamvid.packing.options import PackOptions
from streamvid.transform.dali_graph import by_constants
from streamvid.transform.params import batch_params
from streamvid.transform.spec import by_view
from streamvid.transform.triton import evaluation_params, serving_graph
from tests.support import pbtxt
from tests.support.packed import pack_recipes
from tools.clips import Recipe

VP9 = Recipe(codec="vp9", container="mp4", width=130, height=98, gop=8)
CLIPS = {
    "long": replace(VP9, frames=45),
    "high": replace(VP9, width=96, height=120, frames=20, seed=1),
    "whole": replace(VP9, frames=28, seed=2),  # 14 frames at stride 2: two sub-sequences without padding
    "one": replace(VP9, frames=1, seed=3),
}
FRAMES, STRIDE = 7, 2
NORMALISED = {"mean": 0.45, "std": (0.2, 0.225, 0.25)}
FULL: dict[str, Any] = {"horizontal_flip": 0.5, "vertical_flip": 0.5, "brightness": 0.3, "blur": 0.5, "erase": 0.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`videos` with the clips as MP4s, and `set`, the dataset that was packed from them."""
    return pack_recipes(CLIPS, tmp_path_factory.mktemp("triton"), options=PackOptions("any")).parent


def served(model: Path, folder: Path, names: list[str], *, dynamic: bool = True) -> list[list[npt.NDArray[Any]]]:
    """What the serialized pipeline gives for videos, as the backend splits it: of each output, of each video."""
    from nvidia.dali import Pipeline

    graph = Pipeline.deserialize(filename=str(model / "1" / "model.dali"), device_id=None, exec_dynamic=dynamic)
    graph.build()
    graph.feed_input("encoded", [np.fromfile(folder / "videos" / f"{name}.mp4", dtype=np.uint8) for name in names])
    return [[np.array(output.at(n)) for n in range(len(names))] for output in graph.run()]


def evaluated(folder: Path, transform: Any, **options: Any) -> list[dict[str, Any]]:
    """The clips' windows by a StreamLoader, in the dataset's order. They are tagged BT.709, as which a server takes
    all."""
    sampling = sv.TiledWindows(FRAMES, stride=STRIDE, pad="constant")
    options = {"batch_size": 64, "shuffle": False, "engine": "dali", "device": "cpu", "num_threads": 2} | options
    with sv.StreamLoader(folder / "set", sampling=sampling, transform=transform.for_evaluation(), **options) as loader:
        return list(loader)  # type: ignore[arg-type]


def inverted(frames: Any) -> Any:
    from nvidia.dali import fn, types

    return fn.cast(255 - frames, dtype=types.UINT8)


TRANSFORMS = [
    sv.Transform(resize=64, crop=48, translate=0.1, zoom=(0.8, 1.2), shear=5.0, **NORMALISED, **FULL),
    sv.Transform(resize=(50, 40), dtype="float16", layout="TCHW", **NORMALISED),
    sv.Transform(crop=(90, 70), dtype="uint8", layout="THWC", hue=20),
    sv.Transform(random_resized_crop=(0.2, 1), crop=(33, 47), **NORMALISED, **FULL),
    sv.Transform(random_resized_crop=(0.2, 1), crop=(47, 33), interpolation="bicubic", dtype="uint8", layout="TCHW"),
    sv.Transform(random_short_side=[60, 90], crop=56, layout="THWC", rotate=10, dali=inverted),
    sv.Views({"small": sv.Transform(resize=40, crop=32), "large": sv.Transform(resize=(64, 80), dtype="uint8")}),
    sv.Views({"low": sv.Transform(crop=(20, 24)), "high": sv.Transform(crop=(80, 96))}, share=("crop",)),
]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=range(len(TRANSFORMS)))
def test_the_tensors_are_those_of_the_engine(folder: Path, tmp_path: Path, transform: Any) -> None:
    model = sv.dali.export(tmp_path, transform=transform, frames=FRAMES, stride=STRIDE, device="cpu", num_threads=2)
    names = sorted(CLIPS)
    outputs = served(model, folder, names)
    (batch,) = evaluated(folder, transform)
    assert [len(video) for video in outputs[0]] == [batch["key"].count(name) for name in names]
    assert not batch["mask"].all()
    for view, output in zip(by_view(transform), outputs, strict=True):
        expected = batch[view].numpy()
        np.testing.assert_array_equal(np.concatenate(output), expected)
        assert output[0].dtype == expected.dtype


def test_black_frames_are_normalised(folder: Path, tmp_path: Path) -> None:
    """fn.pad comes before fn.crop_mirror_normalize: padding is what a black frame becomes, and not zero."""
    transform = sv.Transform(resize=32, crop=32, mean=0.5, std=0.25)
    model = sv.dali.export(tmp_path, transform=transform, frames=FRAMES, device="cpu")
    ((made,),) = served(model, folder, ["one"], dynamic=False)
    assert made.shape == (1, 3, FRAMES, 32, 32)
    assert (made[0, :, 1:] == -2).all()


@pytest.mark.parametrize("size", [256, (32, 40)])
def test_sizes_that_follow_the_video(folder: Path, tmp_path: Path, size: Any) -> None:
    """Without a crop, sub-sequences are as large as the video makes them; the configuration says -1."""
    transform = sv.Transform(resize=size, layout="TCHW")
    model = sv.dali.export(tmp_path, transform=transform, frames=FRAMES, stride=STRIDE, device="cpu")
    ((wide, high),) = served(model, folder, ["long", "high"], dynamic=False)
    sides = [(256, 340), (320, 256)] if size == 256 else [size, size]
    assert [one.shape for one in (wide, high)] == [(4, FRAMES, 3, *sides[0]), (2, FRAMES, 3, *sides[1])]
    (output,) = pbtxt.parse((model / "config.pbtxt").read_text())["output"]
    assert output["dims"] == [FRAMES, 3, *((-1, -1) if size == 256 else size)]


def test_bytes_behind_the_file_are_no_harm(folder: Path, tmp_path: Path) -> None:
    """Files of one request are padded to one length."""
    model = sv.dali.export(tmp_path, transform=sv.Transform(resize=(32, 32)), frames=4, device="cpu")
    ((alone,),) = served(model, folder, ["long"])
    padded = tmp_path / "videos"
    padded.mkdir()
    (padded / "long.mp4").write_bytes((folder / "videos" / "long.mp4").read_bytes() + bytes(70_000))
    ((made,),) = served(model, tmp_path, ["long"])
    np.testing.assert_array_equal(made, alone)


def test_how_far_it_is_from_the_default_engine(folder: Path, tmp_path: Path) -> None:
    """docs/serving.md states it, in levels of 256."""
    transform = sv.Transform(resize=64, crop=48, dtype="uint8", layout="THWC", color="bt601")
    model = sv.dali.export(tmp_path, transform=transform, frames=FRAMES, stride=STRIDE, device="cpu")
    (outputs,) = served(model, folder, sorted(CLIPS))
    (batch,) = evaluated(folder, transform, engine="default")
    difference = np.abs(np.concatenate(outputs).astype(int) - batch["video"].numpy())
    assert difference.max() <= 6
    assert difference.mean() <= 0.3
    raw = sv.Transform(crop=64, dtype="uint8", layout="THWC", color="bt601")
    model = sv.dali.export(tmp_path, transform=raw, frames=FRAMES, stride=STRIDE, device="cpu")
    (outputs,) = served(model, folder, sorted(CLIPS))
    (batch,) = evaluated(folder, raw, engine="default")
    assert torch.equal(torch.from_numpy(np.concatenate(outputs)), batch["video"])


@pytest.mark.parametrize("color", ["auto", "bt601", "bt709", "bt2020"])
def test_colours_are_fixed_at_export(tmp_path: Path, color: Any) -> None:
    """By the transform's matrix, whatever the stream is tagged with; "auto" is BT.709."""
    recipes = {f"{tags}.mp4": replace(VP9, frames=3, colour=tags) for tags in ("bt601", "bt709", "untagged")}
    pack_recipes(recipes, tmp_path, options=PackOptions("any"))
    transform = sv.Transform(crop=(64, 64), dtype="uint8", layout="THWC", color=color)
    model = sv.dali.export(tmp_path, transform=transform, frames=FRAMES, stride=STRIDE, device="cpu")
    (outputs,) = served(model, tmp_path, ["bt601", "bt709", "untagged"])
    (batch,) = evaluated(tmp_path, replace(transform, color="bt709" if color == "auto" else color))
    np.testing.assert_array_equal(np.concatenate(outputs), batch["video"].numpy())


@pytest.mark.parametrize("number", [n for n, one in enumerate(TRANSFORMS) if by_constants(one.for_evaluation())])
def test_constants_in_the_place_of_sizes(
    folder: Path, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, by either executor: `engine="dali"` gives the same there, and no other picture than with sizes."""
    transform = TRANSFORMS[number].for_evaluation()
    options: dict[str, Any] = {"frames": FRAMES, "stride": STRIDE, "device": "cpu", "num_threads": 2}
    names, made = sorted(CLIPS), []
    for constants in (True, False):
        graph = serving_graph(transform, batch_size=4, constants=constants, **options)
        (tmp_path / "1").mkdir(exist_ok=True)
        (tmp_path / "1" / "model.dali").write_bytes(graph.serialize())
        made.append([np.concatenate(one) for one in served(tmp_path, folder, names, dynamic=not constants)])
    monkeypatch.setattr(chunk_pipeline, "graph_inputs", partial(forced, chunk_pipeline.graph_inputs))
    (batch,) = evaluated(folder, transform)
    for view, own, exact in zip(by_view(transform), *made, strict=True):
        np.testing.assert_array_equal(own, batch[view].numpy())
        one = by_view(transform)[view]
        scale = 1.0 if one.dtype == "uint8" else 255 * min(one.mean_std[1])
        off = scale * np.abs(own.astype(np.float64) - exact)
        print(f"{view}: {off.max():.2f} at most, {off.mean():.4f} on average")
        # The middle of a random resized crop is off by up to half a pixel of what comes out.
        assert off.mean() < (2 if one.random_resized_crop else 0.01)
        assert off.max() < 1.01 or one.random_resized_crop


def forced(inputs: Any, spec: Any, *, on_gpu: bool) -> Any:
    """The inputs of a graph on a GPU."""
    return inputs(spec, on_gpu=True)


def test_a_gpu_takes_no_shared_crop(tmp_path: Path) -> None:
    with pytest.raises(sv.InputError, match="leave out share"):
        sv.dali.export(tmp_path, transform=TRANSFORMS[-1], frames=4, device="cuda")


@pytest.mark.parametrize("number", range(len(TRANSFORMS)))
def test_parameters_for_any_size(number: int) -> None:
    """The graph computes what NumPy computes, to the last bit, so that no resize begins a fraction of a pixel off."""
    from nvidia.dali import Pipeline, fn, types

    transform: Any = TRANSFORMS[number]
    transform = transform.for_evaluation()
    sides = np.random.default_rng(number).integers(96, 4400, (2000, 2))
    graph = Pipeline(batch_size=len(sides), num_threads=1, device_id=None)
    with graph:
        made = evaluation_params(transform, fn.external_source(name="sides", dtype=types.FLOAT64, ndim=1))
        nodes = {f"{view}.{name}": node for view, one in made.items() for name, node in one.items()}
        graph.set_outputs(*nodes.values())
    graph.build()
    graph.feed_input("sides", list(sides.astype(np.float64)))
    expected = batch_params(transform, batch_of_sizes(sides, transform.num_random))
    assert set(nodes) == {name for name in expected if "." in name}
    for name, output in zip(nodes, graph.run(), strict=True):
        np.testing.assert_array_equal(np.stack([np.array(output.at(n)) for n in range(len(sides))]), expected[name])


def batch_of_sizes(sides: Int64, num_random: int) -> EncodedBatch:
    """A batch of clips of these heights and widths, of a frame each."""
    ones, nothing = np.ones((len(sides), 1)), np.zeros(len(sides), dtype=np.int64)
    return EncodedBatch(
        slices=[],
        clips=nothing,
        epochs=nothing,
        labels=nothing,
        valid=nothing == 0,
        mask=ones == 1,
        seconds=ones,
        heights=sides[:, 0],
        widths=sides[:, 1],
        rotations=nothing,
        gather=nothing[:, None],
        random=np.random.default_rng(1).random((len(sides), num_random)),
        bytes_read=0,
        absent=nothing - 1,
    )


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_model_repository(tmp_path: Path, device: Any) -> None:
    """What Triton and the backend ask for: https://github.com/triton-inference-server/dali_backend, docs/config.md."""
    views = {"größe": sv.Transform(crop=(24, 32), layout="TCHW", dtype="float16"), "large": sv.Transform(resize=64)}
    made = sv.dali.export(
        tmp_path / "models", transform=views, frames=16, stride=2, name="clips-2", device=device, max_batch_size=5
    )
    assert made == tmp_path / "models" / "clips-2"
    assert sorted(str(path.relative_to(made)) for path in made.rglob("*")) == ["1", "1/model.dali", "config.pbtxt"]
    config = pbtxt.parse((made / "config.pbtxt").read_text(encoding="utf-8"))
    assert config == {
        "name": "clips-2",
        "backend": "dali",
        "max_batch_size": 5,
        "input": [{"name": "encoded", "data_type": "TYPE_UINT8", "dims": [-1], "allow_ragged_batch": True}],
        "output": [
            {"name": "größe", "data_type": "TYPE_FP16", "dims": [16, 3, 24, 32]},
            {"name": "large", "data_type": "TYPE_FP32", "dims": [3, 16, -1, -1]},
        ],
        "instance_group": [{"kind": "KIND_GPU" if device == "cuda" else "KIND_CPU", "count": 1}],
        "parameters": [
            {"key": "num_threads", "value": {"string_value": "4"}},
            {"key": "split_along_outer_axis", "value": {"string_value": "größe:large"}},
        ],
    }
    # The backend reads these of the pipeline, and compares them with the configuration.
    serialized = (made / "1" / "model.dali").read_bytes()
    for name in (b"encoded", "größe".encode(), b"large", b"decoders__Video"):
        assert name in serialized


def test_a_second_export_replaces_the_first(tmp_path: Path) -> None:
    first = sv.dali.export(tmp_path, transform=sv.Transform(resize=(32, 32)), frames=8, device="cpu")
    before = (first / "config.pbtxt").read_text()
    assert sv.dali.export(tmp_path, transform=sv.Transform(resize=(32, 64)), frames=4, device="cpu") == first
    assert (first / "config.pbtxt").read_text() != before


def scripted(frames: Any) -> Any:
    from nvidia.dali import fn

    return fn.python_function(frames, function=lambda x: x)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"transform": sv.Transform(dtype="bfloat16")}, "DALI writes no bfloat16"),
        ({"transform": "Transform()"}, "transform must be a Transform"),
        ({"transform": {"encoded": sv.Transform()}}, "as the model's input is"),
        ({"frames": 0}, "frames must be a whole number"),
        ({"stride": -1}, "stride must be a whole number"),
        ({"name": "../x"}, "name must be"),
        ({"name": ".."}, "name must not begin with a dot"),
        ({"name": ""}, "name must be"),
        ({"device": "gpu"}, "device must be one of 'cuda', 'cpu'"),
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"directory": None}, "directory must be a path or URL; it is None"),
        ({"directory": "s3://bucket/models"}, "s3://bucket/models is not on this machine: write the model to a folder"),
        ({"transform": sv.Transform(dali=scripted), "device": "cpu"}, "cannot be serialized"),
    ],
)
def test_errors_are_words(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(sv.InputError, match=said):
        sv.dali.export(**{"directory": tmp_path / "new", "transform": sv.Transform(resize=32), "frames": 8} | options)
    assert not (tmp_path / "new").exists()
