"""The reference of the GPU tests: whole clips decoded by stock DALI, in processes of its own.

DALI's decoder cache lives as long as its process (`streamvid.decode.dali_cache_guard`), so a clip must not be decoded
behind one whose decoder it would get. Clips share a process where that cannot be: starting one takes seconds.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from streamvid.decode.dali_cache_guard import CacheKey, cache_key, misses_cache
from streamvid.mp4.sample_entry import without_bit_rate
from streamvid.video.stored_clip import StoredClip

_SCRIPT = """
import sys, numpy as np
from nvidia.dali import fn, pipeline_def
@pipeline_def(batch_size=1, num_threads=1, device_id=0, prefetch_queue_depth=1)
def graph():
    return fn.decoders.video(fn.external_source(name="mp4", ndim=1), device="mixed")
for mp4 in sys.argv[1:]:
    pipe = graph()
    pipe.build()
    pipe.feed_input("mp4", [np.fromfile(mp4, dtype=np.uint8)])
    (out,) = pipe.run()
    np.save(mp4 + ".npy", np.array(out.as_cpu().at(0)))
"""
_PROCESSES = 4


def stock_frames(clips: Sequence[StoredClip]) -> list[npt.NDArray[np.uint8]]:
    """All frames of each clip, uint8 [frames, height, width, 3], by `fn.decoders.video` of the whole MP4."""
    processes = _partition(clips)
    with ThreadPoolExecutor(_PROCESSES) as pool:
        list(pool.map(_run, processes))
    return [np.load(_frames_of(clip.mp4)) for clip in clips]


def _partition(clips: Sequence[StoredClip]) -> list[list[Path]]:
    """Files that may share a process: a clip can get only decoders that were opened for its own parameter sets."""
    processes: list[tuple[dict[CacheKey, bytes], list[Path]]] = []
    for clip in clips:
        key = cache_key(clip.codec, clip.width, clip.height)
        # Those that are lower than they are coded never find a decoder.
        decoder = b"" if misses_cache(clip.codec, clip.width, clip.height) else without_bit_rate(clip.stsd)
        for decoders, files in processes:
            if key is None or decoders.setdefault(key, decoder) == decoder:
                files.append(clip.mp4)
                break
        else:
            processes.append(({} if key is None else {key: decoder}, [clip.mp4]))
    return [files for _, files in processes]


def _run(files: Sequence[Path]) -> None:
    subprocess.run([sys.executable, "-c", _SCRIPT, *map(str, files)], check=True, timeout=120)


def _frames_of(mp4: Path) -> Path:
    return mp4.with_name(mp4.name + ".npy")
