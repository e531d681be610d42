"""What cutting without re-encoding costs in bytes: packets that clips store and do not show, and shared ones.

`python -m tools.bench.cut_overhead [--minutes M]` makes a video of 1280x720 at 30 frames a second whose pictures change
every 8.2 seconds, in H.264 as x264 makes it unless told otherwise (a key frame every 250 frames, and where the
picture changes), and again with key frames every 30 frames; cuts each in several ways; and prints a table.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np

from streamvid.packing.frame_spans import FrameSpan, fixed_spans, scene_spans
from streamvid.packing.options import FixedLength
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from streamvid.video.trim import cut_packets
from tools.clips import Recipe, write

_FPS = 30
_SCENE = 8 * _FPS


def main() -> None:
    """Make, cut, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4)
    frames = int(parser.parse_args().minutes * 60 * _FPS)
    print("| key frames | cuts | clips | bytes, video = 100 | hidden packets | their bytes | shared frames |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for title, gop, params in (
            ("every 250 and at changes", 250, (("scenecut", "40"), ("min-keyint", "25"))),
            ("every 250 alone", 250, ()),
            ("every 30", 30, ()),
        ):
            recipe = Recipe(
                width=1280,
                height=720,
                fps=Fraction(_FPS),
                frames=frames,
                gop=gop,
                b_frames=3,
                crf=23,
                scene=_SCENE + 7,
                number=False,
                options=(("preset", "veryfast"),),
                params=params,
            )
            whole = store_clip(write(recipe, folder / "video.mp4"), folder)
            for what, spans in _cuts(whole).items():
                print(f"| {title} | {what} | {' | '.join(_cost(whole, spans))} |", flush=True)


def _cuts(whole: StoredClip) -> dict[str, list[FrameSpan]]:
    frames = len(whole.index.visible)
    rng = np.random.default_rng(0)
    length, step = 10 * _FPS, 5 * _FPS
    scenes = scene_spans(whole, range(_SCENE + 7, frames, _SCENE + 7))
    starts = sorted(rng.integers(0, max(1, frames - length), 10).tolist())
    return {
        "at changes": scenes,
        "10 s, one after the other": fixed_spans(whole, FixedLength(10)),
        "2 s, one after the other": fixed_spans(whole, FixedLength(2)),
        "10 s, every 5 s": [FrameSpan(n, n + length) for n in range(0, frames - length + 1, step)],
        "ten of 10 s anywhere": [FrameSpan(n, n + length) for n in starts],
    }


def _cost(whole: StoredClip, spans: Sequence[FrameSpan]) -> list[str]:
    """Bytes stored against the bytes of the packets that some clip stores, each counted once."""
    sizes, index = whole.index.size, whole.index
    stored = hidden = hidden_bytes = packets = 0
    union = np.zeros(len(index), dtype=bool)
    shown = np.zeros(len(index), dtype=np.int64)
    for span in spans:
        chosen = cut_packets(index, span.first, span.end)
        lead = ~np.isin(chosen, index.visible[span.first : span.end])
        stored += int(sizes[chosen].sum())
        packets += len(chosen)
        hidden += int(lead.sum())
        hidden_bytes += int(sizes[chosen[lead]].sum())
        union[chosen] = True
        shown[index.visible[span.first : span.end]] += 1
    once = int(sizes[union].sum())
    return [
        str(len(spans)),
        f"{100 * stored / once:.0f}",
        f"{100 * hidden / packets:.0f} %",
        f"{100 * hidden_bytes / stored:.0f} %",
        f"{100 * float((shown > 1).sum() / max(1, (shown > 0).sum())):.0f} %",
    ]


if __name__ == "__main__":
    main()
