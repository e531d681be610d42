"""`sv.dali.export`: the transform as a model of Triton's DALI backend: encoded videos in, the model's tensors out.

A server has no plan and no random choices. On a CPU the graph computes the parameters of `streamvid.transform.params`
itself, from the size of the frames, in the same double precision and order of operations. On a GPU it cannot: the
backend has DALI's older executor, which copies no GPU result back to the CPU, where operators take their arguments.
There all parameters are constants, as with `engine="dali"`. So the tensors equal those of `engine="dali"` on the same
device, bit for bit.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from streamvid.checks import check, integer, one_of, shown, suggest_keywords
from streamvid.color.render import recolouring
from streamvid.color.tags import Color, ColorOption
from streamvid.errors import InputError
from streamvid.storage import filesystem
from streamvid.storage.url import given_path, is_local, local_path, redact
from streamvid.transform.dali_graph import by_constants, crop_resize, finish
from streamvid.transform.params import followers, needed
from streamvid.transform.sharing import largest, pair
from streamvid.transform.spec import Transform, Views, by_view

if TYPE_CHECKING:
    from nvidia.dali import Pipeline
    from nvidia.dali.data_node import DataNode

INPUT: Final = "encoded"
"""Name of the model's input: a video file's bytes."""
_TRITON_TYPES: Final = {"uint8": "TYPE_UINT8", "float16": "TYPE_FP16", "float32": "TYPE_FP32"}
_DEVICES: Final[tuple[Literal["cuda", "cpu"], ...]] = ("cuda", "cpu")


@suggest_keywords
def export(
    directory: str | os.PathLike[str],
    *,
    transform: Transform | Views | Mapping[str, Transform],
    frames: int,
    stride: int = 1,
    name: str = "streamvid",
    device: Literal["cuda", "cpu"] = "cuda",
    max_batch_size: int = 16,
    num_threads: int = 4,
) -> Path:
    """Write a model for Triton's DALI backend that decodes and transforms videos as a loader does for evaluation.

    The model takes a file's bytes, `encoded`, and returns for each view a batch of the video's sub-sequences, each of
    `frames` frames, every `stride`-th of the video; the last one is padded with black frames. They are those of
    `TiledWindows(frames, stride=stride, pad="constant")` with `transform.for_evaluation()`, by `engine="dali"` on that
    device. A server sees no tags: `color="auto"` is BT.709 for all videos.

    Args:
        directory: the model repository; the model becomes `directory/name`. Files of an earlier export are replaced.
        transform: a loader's transform; its randomness is left out. The user's part (`dali`) gets all frames of the
            video.
        frames, stride: length of a sub-sequence in frames, and step from frame to frame.
        name: the model's name.
        device: "cuda" or "cpu", where the model decodes. On the CPU, DALI decodes only VP8, VP9 and Motion JPEG.
        max_batch_size: most videos in a request.
        num_threads: CPU threads of the server's pipeline.

    Returns:
        the model's folder.

    Raises:
        InputError: an option is invalid, or a server cannot run the transform.
        DatasetError: the folder cannot be written to.
    """
    path = given_path(directory, "directory")
    if not is_local(path):
        raise InputError(f"directory {redact(path)} is not on this machine: write the model to a folder, and copy it")
    if isinstance(transform, Mapping):
        transform = Views(transform)
    check(isinstance(transform, Transform | Views), transform, "transform", "a Transform, or a dict of them by name")
    integer(frames, "frames")
    integer(stride, "stride")
    integer(max_batch_size, "max_batch_size")
    integer(num_threads, "num_threads")
    one_of(device, _DEVICES, "device")
    if not isinstance(name, str) or not name or not name.isascii() or not all(c.isalnum() or c in "._-" for c in name):
        raise InputError(f"name must be a model's name, of letters, digits, '.', '_' and '-'; it is {shown(name)}")
    if name.startswith("."):
        raise InputError(f"name must not begin with a dot; it is {shown(name)}")
    transform = transform.for_evaluation()
    views = by_view(transform)
    if device == "cuda" and not by_constants(transform):
        raise InputError(
            "a server's GPU cannot make views that share their crop: leave out share, or give device='cpu'"
        )
    for view, spec in views.items():
        if spec.dtype not in _TRITON_TYPES:
            raise InputError(f"DALI writes no {spec.dtype} ({view}): give Transform(dtype='float32') or 'float16'")
        if view == INPUT:
            raise InputError(f"a view cannot be called {INPUT!r}, as the model's input is")
    graph = serving_graph(
        transform,
        frames=frames,
        stride=stride,
        device=device,
        batch_size=max_batch_size,
        num_threads=num_threads,
        constants=device == "cuda",
    )
    try:
        serialized = graph.serialize()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"a pipeline with this Transform(dali) cannot be serialized: {reason}") from error
    folder = Path(local_path(path)) / name
    config = _config(views, frames, name=name, device=device, batch_size=max_batch_size, num_threads=num_threads)
    # Written atomically, because a server that polls its models may read at any moment.
    filesystem.write_bytes(folder / "1" / "model.dali", serialized)
    filesystem.write_bytes(folder / "config.pbtxt", config.encode())
    return folder


def serving_graph(
    transform: Transform | Views,
    *,
    frames: int,
    stride: int,
    device: str,
    batch_size: int,
    num_threads: int,
    constants: bool,
) -> Pipeline:
    """The pipeline, not built, so that it can be serialized on a machine without a GPU. Arguments as in `export`, and
    whether cropping uses constants only."""
    from nvidia.dali import Pipeline, fn, types

    views = by_view(transform)
    dtypes = {"uint8": types.UINT8, "float16": types.FLOAT16, "float32": types.FLOAT}
    graph = Pipeline(
        batch_size=batch_size,
        num_threads=num_threads,
        device_id=None,
        output_dtype=[dtypes[spec.dtype] for spec in views.values()],
        output_ndim=[5] * len(views),
    )
    with graph:
        encoded = fn.external_source(name=INPUT, device="cpu", dtype=types.UINT8, ndim=1)
        decoded = fn.decoders.video(encoded, stride=stride, device="mixed" if device == "cuda" else "cpu")
        decoded = _recoloured(decoded, next(iter(views.values())).color)
        params: Mapping[str, Mapping[str, DataNode]] = {view: {} for view in views}
        if not constants:
            params = evaluation_params(transform, decoded.shape(dtype=types.FLOAT64)[1:3])
        graph.set_outputs(*(_sub_sequences(view, spec, decoded, params[view], frames) for view, spec in views.items()))
    return graph


def _recoloured(decoded: DataNode, color: ColorOption) -> DataNode:
    """Frames that DALI has converted by BT.601, converted to another matrix."""
    from nvidia.dali import fn, types

    if color == "bt601":
        return decoded
    factors = recolouring(Color("bt709" if color == "auto" else color, False, (0, 0)))
    return fn.coord_transform(decoded, M=factors.ravel().tolist(), dtype=types.UINT8)


def _sub_sequences(
    view: str, transform: Transform, decoded: DataNode, params: Mapping[str, DataNode], frames: int
) -> DataNode:
    """For each video [sub-sequences, …] in the transform's layout, as an output named `view`."""
    from nvidia.dali import fn

    made = crop_resize(transform, decoded, params)
    # If no shape was given, fn.pad would make all videos of a request as long as the longest.
    made = finish(transform, made, {}, partial(fn.pad, axis_names="F", align=frames, shape=[1]))
    rows: dict[str, Any] = {"rel_shape": [-1, frames, 1, 1, 1], "src_dims": [0, -1, 1, 2, 3]}
    if transform.layout != "CTHW":
        return fn.reshape(made, layout="", name=view, **rows)
    return fn.transpose(fn.reshape(made, layout="", **rows), perm=[0, 2, 1, 3, 4], name=view)


def fixed_size(transform: Transform) -> tuple[int, int] | None:
    """Height and width of the output, the same for all videos; None if they depend on the video."""
    if transform.crop is not None:
        return pair(transform.crop)
    return transform.resize if isinstance(transform.resize, tuple) else None


def evaluation_params(transform: Transform | Views, upright: DataNode) -> dict[str, dict[str, DataNode]]:
    """`size`, `start` and `end` of `streamvid.transform.params` by view, where needed.

    DALI's constants are float32: those below are whole numbers, halves, or sums.

    Args:
        transform: a transform without randomness.
        upright: float64 [2], the frames' height and width.
    """
    from nvidia.dali import fn, types

    views, behind = by_view(transform), followers(transform)
    made = {view: _of_one_view(spec, upright) for view, spec in views.items()}
    if isinstance(transform, Views) and "crop" in transform.share:
        leader = made[largest(views)]
        made = {view: params | {"start": leader["start"], "end": leader["end"]} for view, params in made.items()}
    return {
        view: {name: fn.cast(made[view][name], dtype=types.FLOAT) for name in needed(spec, follows=view in behind)}
        for view, spec in views.items()
    }


def _of_one_view(transform: Transform, upright: DataNode) -> dict[str, DataNode]:
    from nvidia.dali import fn, math

    def both(value: tuple[int, ...] | int) -> DataNode:
        height, width = pair(value)
        return fn.cat(upright[0:1] * 0 + height, upright[1:2] * 0 + width, axis=0)

    height, width = upright[0:1], upright[1:2]
    if transform.random_resized_crop is not None and transform.crop is not None:
        # As in `streamvid.transform.params.boxes` for the whole area and one ratio.
        proportion = _double(float(np.exp(np.log(transform.ratio[0]))), height * 0)
        wide = math.min(math.sqrt(height * width * proportion), math.min(width, height * proportion))
        extent = math.clamp(math.floor(fn.cat(wide / proportion, wide, axis=0) + 0.5), 1, upright)
        start = math.floor((upright - extent + 1) * 0.5)
        return {"size": both(transform.crop), "start": start, "end": start + extent}
    size = upright
    if isinstance(transform.resize, tuple):
        size = both(transform.resize)
    elif transform.resize is not None:
        size = math.max(math.floor(upright * transform.resize / math.min(height, width) + 0.5), 1)
    if transform.crop is None:
        return {"size": size, "start": upright * 0, "end": upright}
    crop = both(transform.crop)
    corner = math.floor((size - crop + 1) * 0.5)
    return {"size": crop, "start": corner * upright / size, "end": (corner + crop) * upright / size}


def _double(value: float, zero: DataNode) -> DataNode:
    """A float64 constant as the sum of three of float32, which are 72 bits."""
    for _ in range(3):
        part = float(np.float32(value))
        zero, value = zero + part, value - part
    return zero


def _config(
    views: Mapping[str, Transform], frames: int, *, name: str, device: str, batch_size: int, num_threads: int
) -> str:
    """The model configuration, in protobuf's text format."""
    each = []
    for view, transform in views.items():
        sides = dict(zip("HW", fixed_size(transform) or (-1, -1), strict=True)) | {"T": frames, "C": 3}
        dims = ", ".join(str(sides[axis]) for axis in transform.layout)
        each.append(
            f'  {{\n    name: "{view}"\n    data_type: {_TRITON_TYPES[transform.dtype]}\n    dims: [ {dims} ]\n  }}'
        )
    outputs = ",\n".join(each)
    parameters = {"num_threads": str(num_threads), "split_along_outer_axis": ":".join(views)}
    listed = ",\n".join(
        f'  {{\n    key: "{key}"\n    value: {{ string_value: "{value}" }}\n  }}' for key, value in parameters.items()
    )
    return f"""\
name: "{name}"
backend: "dali"
max_batch_size: {batch_size}
input [
  {{
    name: "{INPUT}"
    data_type: TYPE_UINT8
    dims: [ -1 ]
    allow_ragged_batch: true
  }}
]
output [
{outputs}
]
instance_group [
  {{
    kind: {"KIND_GPU" if device == "cuda" else "KIND_CPU"}
    count: 1
  }}
]
parameters [
{listed}
]
"""
