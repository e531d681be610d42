"""Tracks with parameter sets in band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av

from streamvid.bitstream.annexb import parameter_sets
from streamvid.bitstream.packets import START_CODE
from streamvid.mp4.sample_entry import decoder_specific_info
from streamvid.video.remux import store_clip
from tests.support.clips import write
from tools.clips import Recipe
from tools.recipes import Codec

OTHER_SETS: Final[dict[Codec, dict[str, Any]]] = {
    "h264": {"params": (("chroma-qp-offset", "6"),)},
    "hevc": {"params": (("cbqpoffs", "6"), ("crqpoffs", "-6"))},
    "mpeg4": {"options": (("mpeg_quant", "1"),)},
}
"""Changes of a recipe after which decoding by the sets of the recipe gives other pixels, without an error."""


def sets_and_packets(path: Path) -> tuple[bytes, list[bytes]]:
    """The parameter sets of a video's sample description, as packets of an MP4 have them, and the packets."""
    folder = path.with_suffix(".stored")
    folder.mkdir()
    clip = store_clip(path, folder)
    if clip.codec == "mpeg4":
        sets = decoder_specific_info(clip.stsd)
    else:
        units = parameter_sets(clip.codec, clip.stsd).annex_b.split(START_CODE)[1:]
        sets = b"".join(len(unit).to_bytes(4, "big") + unit for unit in units)
    with av.open(str(path)) as source:
        return sets, [bytes(packet) for packet in source.demux(video=0) if packet.size]


def mux_packets(like: Path, packets: Sequence[bytes], gop: int, target: Path) -> Path:
    """Write packets without B-frames as a track like a video's, at 25 frames a second, with a key frame every `gop`."""
    with av.open(str(like)) as source, av.open(str(target), "w") as output:
        track = output.add_stream_from_template(source.streams.video[0], opaque=True)
        for n, data in enumerate(packets):
            packet = av.Packet(data)
            packet.pts = packet.dts = 40 * n
            packet.time_base, packet.stream, packet.is_keyframe = Fraction(1, 1000), track, n % gop == 0
            output.mux(packet)
    return target


def join_recordings(codec: Codec, path: Path, *, in_band: bool) -> Path:
    """Two recordings of other parameter sets, the second's in its first key frame alone, which is neither the first,
    the middle nor the last of all. `in_band`: so are the first's, as where both were streams."""
    recipe = Recipe(codec=codec, width=96, height=64, frames=24, gop=4, b_frames=0)
    first = write(recipe, path.with_suffix(".a.mp4"))
    second = write(replace(recipe, frames=12, seed=1, **OTHER_SETS[codec]), path.with_suffix(".b.mp4"))
    (own, packets), (sets, others) = sets_and_packets(first), sets_and_packets(second)
    return mux_packets(first, [own * in_band + packets[0], *packets[1:], sets + others[0], *others[1:]], 4, path)
