"""The transform as DALI operators, the same on CPU and GPU. No operator is random: see `streamvid.transform.params`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from streamvid.errors import InputError
from streamvid.transform.params import ClipTransform, followers, param_names
from streamvid.transform.sharing import pair
from streamvid.transform.spec import Transform, Views, by_view

if TYPE_CHECKING:
    from nvidia.dali.data_node import DataNode

_CROP_RESIZE_PARAMS: Final = ("mirrored", "angle", "size", "start", "end")
"""Parameters that the graph does not need if frames come to it upright, cropped and resized."""


SIZES: Final = ("size", "start", "end")
"""Parameters of which the graph needs none where nothing is random, and the size of frames is not known."""


def _operators(frames: DataNode) -> Any:
    """DALI's operators: those of graphs if frames are a node, those of the dynamic mode, which runs immediately, if
    they are a tensor."""
    from nvidia.dali import fn
    from nvidia.dali.data_node import DataNode

    if isinstance(frames, DataNode):
        return fn
    from nvidia.dali.experimental import dynamic

    return dynamic


def input_names(spec: ClipTransform, *, crop_resized: bool) -> tuple[str, ...]:
    """Names of the graph's inputs besides frames: the parameters (`streamvid.transform.params`) that it uses."""
    unused = _CROP_RESIZE_PARAMS if crop_resized else ()
    return tuple(name for name in param_names(spec) if name.rpartition(".")[2] not in unused)


def build_graph(
    spec: ClipTransform, frames: Sequence[DataNode], params: Mapping[str, DataNode], *, crop_resized: bool
) -> list[DataNode]:
    """Add the transform to a pipeline definition. Returns the views, on the device of the frames.

    Args:
        spec: the transform.
        frames: uint8 [decoded, height, width, 3], layout FHWC: one node of decoded frames, or one for each view. May be
            tensors of DALI's dynamic mode instead, which are transformed immediately.
        params: the inputs that `input_names` names, as nodes; if frames are tensors, as arrays.
        crop_resized: whether there are frames for each view, already upright, cropped and resized.
    """
    from nvidia.dali import types

    names, fn = by_view(spec.transform), _operators(frames[0])
    if not crop_resized:
        (whole,) = frames
        if spec.mirrors:
            whole = fn.flip(whole, horizontal=params["mirrored"])
        if spec.rotates:
            whole = fn.rotate(whole, angle=params["angle"], interp_type=types.INTERP_NN, keep_size=False)
        frames = [whole] * len(names)
    shown = params["shown"] if spec.has_black_frames else None
    if shown is not None and frames[0].device == "gpu":
        shown = shown.gpu()
    views = []
    for (view, transform), made in zip(names.items(), frames, strict=True):
        own = {name.partition(".")[2]: node for name, node in params.items() if name.startswith(f"{view}.")}
        if not crop_resized:
            made = crop_resize(transform, made, own)
        # Each decoded frame is processed once, even if several frame positions show it.
        made = _augment(transform, _rotate(made, own), own)
        made = fn.sequence_rearrange(made, new_order=params["gather"])
        made = finish(transform, made, own, partial(_black_out, shown))
        if transform.layout == "CTHW":
            made = fn.transpose(made, perm=[1, 0, 2, 3], output_layout="CFHW")
        views.append(made)
    return views


def by_constants(transform: Transform | Views) -> bool:
    """Whether cropping and resizing can be expressed by constants, without the frames' size: if nothing of it is
    random."""
    return transform == transform.for_evaluation() and not followers(transform)


def crop_resize(transform: Transform, frames: DataNode, params: Mapping[str, DataNode]) -> DataNode:
    """Resize and crop by the parameters `size`, `start` and `end`; if there are none, by constants: see
    `by_constants`."""
    from nvidia.dali import types

    fn = _operators(frames)
    interpolation = {"bilinear": types.INTERP_LINEAR, "bicubic": types.INTERP_CUBIC, "nearest": types.INTERP_NN}
    interpolated = {"interp_type": interpolation[transform.interpolation]}
    if not params.keys() & set(SIZES):
        if transform.random_resized_crop is not None and transform.crop is not None:
            frames = fn.resize(frames, size=pair(transform.crop), mode="not_smaller", **interpolated)
        elif isinstance(transform.resize, tuple):
            frames = fn.resize(frames, size=pair(transform.resize), **interpolated)
        elif transform.resize is not None:
            frames = fn.resize(frames, resize_shorter=transform.resize, subpixel_scale=False, **interpolated)
        if transform.crop is not None:
            frames = fn.crop(frames, crop=pair(transform.crop), crop_pos_x=0.5, crop_pos_y=0.5)
        return frames
    if "end" in params:
        # Resize and crop in one operator, which computes only the pixels that the crop keeps.
        frames = fn.resize(
            frames,
            size=params["size"],
            roi_start=params["start"],
            roi_end=params["end"],
            **interpolated,
        )
    elif "start" in params:
        frames = fn.slice(
            frames, params["start"], params["size"], axes=[1, 2], normalized_anchor=False, normalized_shape=False
        )
    elif "size" in params:
        frames = fn.resize(frames, size=params["size"], **interpolated)
    return frames


def _rotate(frames: DataNode, params: Mapping[str, DataNode]) -> DataNode:
    """Rotate, or apply the whole affine map if there is more than rotation."""
    from nvidia.dali import types

    fn, how = _operators(frames), {"interp_type": types.INTERP_LINEAR, "fill_value": 0.0}
    if "matrix" in params:
        return fn.warp_affine(frames, matrix=params["matrix"], inverse_map=False, **how)
    return fn.rotate(frames, angle=params["rotate"], keep_size=True, **how) if "rotate" in params else frames


def _augment(transform: Transform, frames: DataNode, params: Mapping[str, DataNode]) -> DataNode:
    """Change colours, blur and erase."""
    fn = _operators(frames)
    if transform.recolours:
        names = ("brightness", "contrast", "saturation", "hue")
        frames = fn.color_twist(frames, **{name: params[name] for name in names})
    if "window" in params:
        frames = fn.gaussian_blur(frames, sigma=params["sigma"], window_size=params["window"])
    if "erase_size" in params:
        frames = fn.erase(
            frames, anchor=params["erase_start"], shape=params["erase_size"], axis_names="HW", fill_value=0.0
        )
    return frames


def finish(
    transform: Transform, frames: DataNode, params: Mapping[str, DataNode], pad: Callable[[DataNode], DataNode]
) -> DataNode:
    """Flip, apply the user's part, `pad` with black frames, and normalise: frames in DALI's layout FHWC or FCHW."""
    from nvidia.dali import types

    fn = _operators(frames)
    # crop_mirror_normalize can mirror at no extra cost.
    fused = transform.dtype != "uint8" and transform.dali is None and not transform.vertical_flip
    if not fused and (transform.horizontal_flip or transform.vertical_flip):
        frames = fn.flip(frames, horizontal=params.get("mirror", 0), vertical=params.get("upside_down", 0))
    if transform.dali is not None:
        frames = _apply_user_part(transform.dali, frames)
    frames = pad(frames)
    if transform.dtype == "uint8":
        if transform.layout != "THWC":
            frames = fn.transpose(frames, perm=[0, 3, 1, 2], output_layout="FCHW")
        return frames
    mean, std = transform.mean_std
    return fn.crop_mirror_normalize(
        frames,
        mirror=params["mirror"] if fused and transform.horizontal_flip else 0,
        mean=[255 * v for v in mean],
        std=[255 * v for v in std],
        dtype=types.FLOAT16 if transform.dtype == "float16" else types.FLOAT,
        output_layout="FHWC" if transform.layout == "THWC" else "FCHW",
    )


def _black_out(shown: DataNode | None, frames: DataNode) -> DataNode:
    """Make frame positions black that have no frame."""
    from nvidia.dali import fn

    return frames if shown is None else fn.reinterpret(frames * shown, layout="FHWC")


def _apply_user_part(function: object, frames: DataNode) -> DataNode:
    """Apply `Transform(dali)`.

    Raises:
        InputError: it did not return one node on the device of the frames.
    """
    from nvidia.dali import fn
    from nvidia.dali.data_node import DataNode

    assert callable(function)
    made = function(frames)
    if not isinstance(made, DataNode):
        raise InputError(f"Transform(dali) must return one DALI node; it returned {type(made).__name__}")
    if made.device != frames.device:
        raise InputError(f"Transform(dali) must leave frames on the {frames.device}; its node is on the {made.device}")
    # Arithmetic operators drop the layout.
    return fn.reinterpret(made, layout="FHWC")
