"""Clips of any structure that encoders can be asked for, and frames to want of them: cases to test slices with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import av
import numpy as np
import numpy.typing as npt

from streamvid.errors import VideoError
from streamvid.video.frame_index import DISPOSABLE, HIDDEN, LEADING, RANDOM_ACCESS, FrameIndex
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from tests.support.encoder_process import EncoderProcess
from tools.clips import Recipe
from tools.recipes import Codec

Int64 = npt.NDArray[np.int64]
Choose = Callable[[Sequence[Any]], Any]
"""Takes one of several: `numpy.random.Generator.choice`, or hypothesis."""

CODECS: Final = ("h264", "h264", "h264", "hevc", "hevc", "hevc", "vp9", "vp9", "av1", "av1", "mpeg4", "vp8", "mjpeg")
"""Codecs with more structure are drawn more often."""
_LAYERS: Final = (
    "ts_number_layers=2:ts_target_bitrate=100,200:ts_rate_decimator=2,1:ts_periodicity=2:ts_layer_id=0,1:"
    "ts_layering_mode=2",
    "ts_number_layers=3:ts_target_bitrate=100,150,200:ts_rate_decimator=4,2,1:ts_periodicity=4:ts_layer_id=0,2,1,2:"
    "ts_layering_mode=3",
)
_PARAMS: Final = {
    "h264": {
        "ref": ("1", "2", "4"), "b-pyramid": ("none", "strict", "normal"), "b-adapt": ("0", "1", "2"),
        "scenecut": ("0", "40"), "min-keyint": ("1", "4"), "weightp": ("0", "2"), "weightb": ("0", "1"),
        "intra-refresh": ("0", "0", "0", "1"), "slices": ("1", "3"),
    },
    "hevc": {
        "ref": ("1", "2", "4"), "b-pyramid": ("0", "1"), "b-adapt": ("0", "2"), "scenecut": ("0", "40"),
        "min-keyint": ("1", "4"), "weightb": ("0", "1"), "temporal-layers": ("1", "1", "2"), "radl": ("0", "2"),
    },
    "av1": {
        "hierarchical-levels": ("2", "3", "4", "5"), "pred-struct": ("2", "2", "1"), "irefresh-type": ("1", "2"),
        "film-grain": ("0", "0", "25"), "scm": ("0", "1"), "enable-overlays": ("0", "1"), "enable-tf": ("0", "1"),
    },
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A clip, and frames of it.

    Attributes:
        recipe: what the clip was made of.
        source: the encoder's file.
        clip: as it is packed.
        wanted: sets of frame numbers, int64 [frames], rising: what slices are to be made of.
    """

    recipe: Recipe
    source: Path
    clip: StoredClip
    wanted: list[Int64]


def random_recipe(
    choose: Choose, *, codecs: Sequence[str] = CODECS, width: int = 96, height: int = 64, frames: int = 40
) -> Recipe:
    """Something that an encoder can be asked for: GOPs, B-frames, references across, scene cuts, variable rates.

    Args:
        choose: takes one of several.
        codecs: of which codecs.
        width, height: in pixels.
        frames: at most.
    """
    codec = choose(codecs)
    params = {name: choose(values) for name, values in _PARAMS.get(codec, {}).items()}
    count, gop = int(choose(range(1, frames + 1))), int(choose(range(1, 21)))
    b_frames = int(choose((0, 1, 2, 3, 7))) if codec in ("h264", "hevc", "mpeg4") else 0
    b_frames = min(b_frames, gop - 1)
    options: dict[str, str] = {}
    if codec == "h264" and params["intra-refresh"] == "1":
        b_frames = 0
    if "min-keyint" in params:
        params["min-keyint"] = str(min(int(params["min-keyint"]), gop))
    if codec == "hevc":
        # With radl, x265 needs room, and crashes now and then if it places the pictures itself.
        if b_frames < 2 or gop < 5 or params["b-adapt"] != "0" or params["scenecut"] != "0":
            params["radl"] = "0"
        params["rc-lookahead"] = "20"  # the preset's is too short for seven B-frames
    if codec == "vp9":
        form = choose(("plain", "hidden", "robust", "layers", "fragile layers"))
        if form == "hidden":
            options = {"auto-alt-ref": "1", "lag-in-frames": "16", "cpu-used": "5", "b": "100k"}
        elif form != "plain":
            options = {} if form == "fragile layers" else {"error-resilient": "1"}
            options |= {"b": "200k"} | ({"ts-parameters": choose(_LAYERS)} if form != "robust" else {})
    if codec == "av1":
        options = {"preset": choose(("12", "8"))}
        if params["pred-struct"] == "1":
            params |= {"enable-overlays": "0", "irefresh-type": "2"}
    container = choose(("webm", "mkv") if codec in ("vp8", "vp9") else ("mp4", "mkv"))
    return Recipe(
        codec=cast(Codec, codec),
        container=container,
        width=width,
        height=height,
        frames=count,
        gop=gop,
        b_frames=b_frames,
        open_gop=bool(choose((False, True))),
        jitter=int(choose(range(100))) if count > 1 and choose((False, True)) else None,
        scene=int(choose((0, 0, 3, 7))),
        seed=int(choose(range(100))),
        params=tuple((name, str(value)) for name, value in params.items()),
        options=tuple((name, str(value)) for name, value in options.items()),
    )


def random_wanted(rng: np.random.Generator, frames: int) -> list[Int64]:
    """Sets of frames to want of a clip of so many: runs, strides and any, from few to all."""
    sets = []
    for _ in range(3):
        first, step = int(rng.integers(0, frames)), int(rng.integers(1, 9))
        sets.append(np.arange(first, frames, step)[: int(rng.integers(1, 9))])
        sets.append(np.arange(first, min(frames, first + int(rng.integers(1, 9)))))
        sets.append(np.sort(rng.choice(frames, int(rng.integers(1, frames + 1)), replace=False)))
    return [part.astype(np.int64) for part in sets]


def make(recipe: Recipe, folder: Path, seed: int, encoder: EncoderProcess) -> Case | None:
    """Encode and pack a clip. None if the encoder writes what its own muxer refuses, or what cannot be packed.

    Args:
        recipe: of the clip.
        folder: an empty one, for its files.
        seed: for the wanted frames, which are each frame alone and some sets: what a frame needs must not depend on
            who else is there.
        encoder: a process for encoders.
    """
    source = folder / f"source.{recipe.container}"
    try:
        if not encoder.write(recipe, source):
            return None
        clip = store_clip(source, folder)
    except (av.error.FFmpegError, VideoError):
        return None
    frames = len(clip.index.visible)
    alone = [np.array([n]) for n in range(frames)]
    return Case(recipe, source, clip, alone + random_wanted(np.random.default_rng(seed), frames))


def cases(
    seed: int, count: int, folder: Path, *, codecs: Sequence[str] = CODECS, width: int = 96, height: int = 64
) -> Iterator[Case]:
    """So many clips, the same for the same seed, and frames to want of them; arguments as for `random_recipe`."""
    rng = np.random.default_rng(seed)

    def choose(values: Sequence[Any]) -> Any:
        return values[int(rng.integers(len(values)))]

    made = 0
    with EncoderProcess() as encoder:
        for number in range(4 * count):
            inner = folder / f"{number:04}"
            inner.mkdir()
            recipe = random_recipe(choose, codecs=codecs, width=width, height=height)
            case = make(recipe, inner, seed + number, encoder)
            if case is not None:
                made += 1
                yield case
            if made == count:
                return
    raise RuntimeError(f"only {made} of {count} clips could be made")


def plainly(index: FrameIndex, frames: Sequence[int]) -> dict[str, list[int]]:
    """The result of `select_packets`, computed packet by packet: the columns of a `PacketSelection`."""
    flags, pts, every = index.flags.tolist(), index.pts.tolist(), range(len(index))
    visible = sorted((n for n in every if not flags[n] & HIDDEN), key=lambda n: pts[n])
    wanted = [visible[frame] for frame in frames]
    gop = list(itertools.accumulate(flag & RANDOM_ACCESS for flag in flags))
    # Leading pictures need all of the group of pictures before their own.
    before = {gop[n] - 1 for n in wanted if flags[n] & LEADING and gop[n]}
    kept = []
    for n in every:
        later = [m for m in wanted if m >= n and gop[m] == gop[n]]
        unneeded = flags[n] & LEADING and not any(flags[m] & LEADING for m in later)
        if n in wanted or ((later or gop[n] in before) and not (flags[n] & DISPOSABLE or unneeded)):
            kept.append(n)
    shown = sorted(kept, key=lambda n: pts[n])
    gops = sorted(before.union(gop[n] for n in wanted))
    refer_back = {gop[n] for n in kept if flags[n] & LEADING} - {gops[0]}
    return {
        "offsets": index.offset[kept].tolist(),
        "sizes": index.size[kept].tolist(),
        "display_order": [shown.index(n) for n in kept],
        "frames": sorted(shown.index(n) for n in wanted),
        "gops": [gop[n] for n in kept],
        "starts": [sum(gop[n] < one for n in kept) for one in gops if one not in refer_back],
        "numbers": kept,
        "crc32c": index.crc32c[kept].tolist(),
    }
