"""The reference that frames are held against: a full sequential decode of a whole file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from streamvid.arrays import UInt8
from streamvid.color.full_size import FullSizeConverter
from streamvid.color.picture import picture_of
from streamvid.color.tags import Color
from streamvid.color.yuv_to_rgb import RgbConverter
from streamvid.video.frame_index import DISPOSABLE, LEADING, FrameIndex
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.stored_clip import StoredClip


def to_rgb(frame: av.VideoFrame, *, full_range: bool, convert: RgbConverter | None = None) -> UInt8:
    """One frame as uint8 [height, width, 3]; arguments as in `RgbConverter`, of which there may be one for several."""
    return np.stack((convert or RgbConverter())(frame, full_range=full_range), axis=-1)


def sequential(
    path: Path | str, *, full_range: bool = False, edits: bool = True, color: Color | None = None
) -> list[npt.NDArray[np.uint8]]:
    """Every frame that a player shows of a file's video, RGB, in order: with DALI's colours, or by `color`.

    With `edits` edit lists are followed. FFmpeg then loses the leading pictures of a key frame that is the last to be
    shown, even if the edit takes in all: so not where nothing is cut.
    """
    with av.open(str(path), options={} if edits else {"ignore_editlist": "1"}) as container:
        frames = container.decode(video=0)
        if color is None:
            as_dali = RgbConverter()
            return [to_rgb(frame, full_range=full_range, convert=as_dali) for frame in frames]
        convert, made = FullSizeConverter(color), []
        for frame in frames:
            made.append(np.empty((frame.height, frame.width, 3), dtype=np.uint8))
            convert(picture_of(frame), made[-1].transpose(2, 0, 1))
        return made


def seconds(path: Path | str) -> list[float]:
    """When each of them is shown, from the first."""
    with av.open(str(path)) as container:
        times: list[Any] = [frame.time for frame in container.decode(video=0)]
    return [time - times[0] for time in times]


def slice_of(clip: StoredClip, frames: npt.ArrayLike, *, index: FrameIndex | None = None) -> EncodedSlice:
    """Some frames of a stored clip as an encoded slice, by way of byte ranges as a loader reads them."""
    return replace(clip, index=index or clip.index).slice(np.asarray(frames, dtype=np.int64))


def packets_of(clip: StoredClip) -> list[memoryview]:
    """The packets in a stored clip's file, in decode order."""
    data = memoryview(clip.mp4.read_bytes())
    return [data[at : at + size] for at, size in zip(clip.index.offset.tolist(), clip.index.size.tolist(), strict=True)]


def to_arrays(decoded: Any) -> list[npt.NDArray[np.uint8]]:
    """Decoded frames on a GPU as NumPy arrays: of a list of PyTorch tensors, or of DALI's list of tensors."""
    if isinstance(decoded, list):
        return [frames.cpu().numpy() for frames in decoded]
    host = decoded.as_cpu()
    return [np.array(host.at(i)) for i in range(len(host))]


def whole(clip: StoredClip) -> EncodedSlice:
    """All frames of a stored clip, and all its packets: nothing is left out."""
    index = clip.index
    plain = replace(index, flags=index.flags & ~np.int64(DISPOSABLE | LEADING))
    # Not where leading pictures refer to what comes before.
    ends = [*index.starts[1:].tolist(), len(index)]
    leading = (index.flags & LEADING) != 0
    starts = [s for s, end in zip(index.starts.tolist(), ends, strict=False) if s and not leading[s:end].any()]
    return replace(slice_of(clip, np.arange(len(index.visible)), index=plain), starts=np.array([0, *starts]))


def joined(*parts: EncodedSlice) -> EncodedSlice:
    """The packets of two slices as one, with the sample description of the first."""
    order = [parts[0].display_order, *(one.display_order + len(parts[0].sizes) for one in parts[1:])]
    return replace(
        parts[0],
        data=np.concatenate([one.data for one in parts]),
        sizes=np.concatenate([one.sizes for one in parts]),
        display_order=np.concatenate(order),
        frames=np.concatenate([one.frames + n * len(parts[0].sizes) for n, one in enumerate(parts)]),
        starts=np.array([0, len(parts[0].sizes)]),
    )
