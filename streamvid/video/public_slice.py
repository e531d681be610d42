"""`streamvid.slice`: some frames of a clip as a small MP4, with checks of its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from streamvid.arrays import Int64, UInt8
from streamvid.checks import check, integer, is_real, suggest_keywords
from streamvid.mp4.sample_entry import coded_size
from streamvid.video.frame_index import FrameIndex
from streamvid.video.packet_selection import byte_ranges, extract_packets, select_packets, slice_mp4


@suggest_keywords
def slice(
    index: FrameIndex,
    frames: npt.ArrayLike,
    read: Callable[[int, int], bytes | bytearray | memoryview | UInt8],
    *,
    stsd: bytes,
    gap: int = 64 << 10,
    waste: float = math.inf,
) -> tuple[UInt8, Int64]:
    """Some frames of a clip as a small MP4, for any decoder.

    Args:
        index: the clip's packets.
        frames: numbers of the wanted frames, ascending, without repeats.
        read: returns the bytes [start, end) of the clip's MP4.
        stsd: the clip's sample description box, as in the dataset's column of that name.
        gap, waste: as for `byte_ranges`.

    Returns:
        the MP4, uint8 [bytes], and the numbers of the wanted frames in it, int64 [wanted], in presentation order.

    Raises:
        IndexError: the clip does not have one of the frames.
        InputError: an argument is of another type.
        ValueError: `frames` is empty, or not ascending whole numbers; `stsd` is damaged; `read` returned more or fewer
            bytes.
    """
    check(isinstance(index, FrameIndex), index, "index", "the frame index of a clip")
    check(callable(read), read, "read", "a function of the first byte and the end")
    check(isinstance(stsd, bytes), stsd, "stsd", "bytes, the clip's sample description box")
    integer(gap, "gap", least=0, most=None)
    check(waste == math.inf or (is_real(waste) and waste >= 0), waste, "waste", "a number of at least 0")
    numbers = np.asarray(frames)
    if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
        raise ValueError(f"frames must be a list of whole numbers; it is {frames!r}"[:300])
    packets = select_packets(index, numbers.astype(np.int64))
    spans, blocks = byte_ranges(packets, gap=gap, waste=waste), []
    for start, end in spans.tolist():
        part = read(start, end)
        check(isinstance(part, bytes | bytearray | memoryview | np.ndarray), part, "what read returns", "bytes")
        blocks.append(np.frombuffer(part, dtype=np.uint8))
        if len(blocks[-1]) != end - start:
            raise ValueError(f"asked for bytes {start} to {end} of the clip, got {len(blocks[-1])} bytes")
    data = extract_packets(packets, spans, blocks)
    return slice_mp4(stsd, packets.sizes, packets.display_order, data, size=coded_size(stsd)), packets.frames
