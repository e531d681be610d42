"""A clip whose height is no multiple of 16 never finds a decoder in DALI's cache: each sample of each batch opens one.

The same cause as decoder_cache.py: NVDECCache looks up the coded height (192 for a clip of 180 rows) and stores the
display height, so such a clip's decoders are never found again. Opening one takes about 0.1 s for 1920x1080 on an
H200, one after the other, and the cache fills up with 100 decoders that hold memory.

Needs: nvidia-dali, numpy, av, a GPU.
"""

import io
import sys
import time

import av
import numpy as np
from nvidia.dali import fn, pipeline_def

BATCH = 8
SLOWER = 2.0


def encode(width, height, frames=4):
    """Grey texture, in an MP4."""
    picture = np.random.default_rng(0).integers(0, 256, (height // 8, width // 8, 1)).astype(np.uint8)
    picture = np.ascontiguousarray(picture.repeat(8, axis=0).repeat(8, axis=1).repeat(3, axis=2))
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream(
            "libx264", rate=30, options={"preset": "veryfast", "x264-params": "ref=1:bframes=0"}
        )
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for _ in range(frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    return np.frombuffer(out.getvalue(), dtype=np.uint8)


@pipeline_def(batch_size=BATCH, num_threads=4, device_id=0, prefetch_queue_depth=1)
def graph():
    return fn.decoders.video(fn.external_source(name="mp4", ndim=1), device="mixed")


def seconds(clip):
    """For a batch, when the same has been decoded three times before."""
    pipe = graph()
    pipe.build()
    for _ in range(4):
        started = time.perf_counter()
        pipe.feed_input("mp4", [clip] * BATCH)
        (out,) = pipe.run()
        out.as_cpu()
        taken = time.perf_counter() - started
    return taken


def main():
    try:
        fitting, cropped = seconds(encode(1920, 1072)), seconds(encode(1920, 1080))
    except RuntimeError as error:
        print(f"cannot run here: {error}")
        return 2
    print(f"{BATCH} clips of 4 frames, the fourth batch: 1920x1072 {fitting:.3f} s, 1920x1080 {cropped:.3f} s")
    print("expected: about the same")
    shown = cropped > SLOWER * fitting
    print("fault shown" if shown else "not shown")
    return 0 if shown else 1


if __name__ == "__main__":
    sys.exit(main())
