"""Images in the graph: each sample goes to the decoder for images or videos, and all outputs are frames of one
layout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from streamvid.arrays import Bool
from streamvid.bitstream.image import CODECS, part_to_decode
from streamvid.dataset.clip_table import ClipTable
from streamvid.errors import VideoError
from streamvid.transform.dali_pipeline import InputType
from streamvid.video.image_decoder import image_node
from streamvid.video.packet_selection import EncodedSlice

if TYPE_CHECKING:
    from nvidia.dali.data_node import DataNode

    Take = Callable[[DataNode], DataNode]

_INPUTS: Final[Mapping[str, InputType]] = {
    "is_image": (np.bool_, 0), "head": (np.uint8, 1), "start": (np.int32, 1), "size": (np.int32, 1),
}  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """The location of an image in a sample's bytes.

    Attributes:
        stsd: the clip's sample description.
        head: bytes to put before the image.
        start, size: of the image, in bytes.
    """

    stsd: bytes
    head: bytes
    start: int
    size: int


def are_images(clips: ClipTable, rows: Sequence[int]) -> Bool:
    """bool [rows]: which of these clips are images."""
    images = [number for number, name in enumerate(clips.codec.names) if name in CODECS]
    return np.isin(clips.codec.codes[list(rows)], images)


def find_picture(encoded: EncodedSlice, begin: int) -> Picture:
    """Parse an image's header before a decoder sees the file.

    Args:
        encoded: the image's slice.
        begin: bytes before the image in the reader's output.

    Raises:
        VideoError: the image is damaged, or contradicts its row.
    """
    try:
        _, head, (start, end) = part_to_decode(encoded.data.tobytes(), encoded.stsd)
    except ValueError as error:
        raise VideoError(f"the image {encoded.name} is damaged ({error}): check it with `streamvid verify`") from error
    size = end - start + (end - start) % 2 if head else end - start
    return Picture(encoded.stsd, head, begin + start, size)


def picture_inputs(*, videos: bool) -> dict[str, InputType]:
    """The inputs of `decode_by_kind` by name, for images with videos or alone."""
    return {name: value for name, value in _INPUTS.items() if videos or name != "is_image"}


def picture_arrays(
    pictures: Sequence[Picture | None], names: Collection[str]
) -> Iterator[list[npt.NDArray[np.generic]]]:
    """The inputs of these names, for each sample; a picture of None is a video."""
    some = [picture or Picture(b"", b"", 0, 0) for picture in pictures]
    made: dict[str, list[npt.NDArray[np.generic]]] = {
        "is_image": [np.array(picture is not None) for picture in pictures],
        "head": [np.frombuffer(picture.head, dtype=np.uint8) for picture in some],
        "start": [np.array([picture.start], dtype=np.int32) for picture in some],
        "size": [np.array([picture.size], dtype=np.int32) for picture in some],
    }
    return (made[name] for name in names)


def decode_by_kind(
    encoded: DataNode,
    inputs: Mapping[str, DataNode],
    decode_videos: Callable[[Take], DataNode] | None,
) -> DataNode:
    """Decode a batch of images and videos on CPU threads, in a graph: uint8 [frames, height, width, 3] each.

    Samples are divided by the operators that DALI makes of an `if` (`enable_conditionals`).

    Args:
        encoded: the reader's output, a node.
        inputs: nodes of `picture_inputs`.
        decode_videos: decodes the videos; its argument is a function that takes the videos' part of a node. None: all
            samples are images.
    """
    from nvidia.dali import fn

    conditional: Any = vars(fn)["_conditional"]
    split, merge = conditional.split, conditional.merge
    is_image = inputs.get("is_image")

    def of_images(node: DataNode) -> DataNode:
        return node if is_image is None else split(node, predicate=is_image)[0]

    start, size = of_images(inputs["start"]), of_images(inputs["size"])
    picture = fn.slice(of_images(encoded), start=start, shape=size, axes=[0], out_of_bounds_policy="pad")
    picture = fn.cat(of_images(inputs["head"]), picture, axis=0)
    frames = fn.expand_dims(image_node(picture, "cpu"), axes=0, new_axis_names="F")
    if decode_videos is None:
        return frames
    return merge(frames, decode_videos(lambda node: split(node, predicate=is_image)[1]), predicate=is_image)
