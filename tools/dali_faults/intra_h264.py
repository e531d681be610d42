"""H.264 in which every picture is a key frame fails on the GPU: CUDA_ERROR_INVALID_VALUE.

x264 with `keyint=1` writes `max_num_ref_frames` 0 into the sequence parameter set. Cameras and editors write such
streams (AVC-Intra, all-intra proxies). HEVC of I-frames alone works.

Needs: nvidia-dali, numpy, av, a GPU.
"""

import io
import sys

import av
import numpy as np
from nvidia.dali import fn, pipeline_def


def encode(codec, params, frames=8):
    """Texture that moves, in an MP4."""
    texture = (
        np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8).repeat(8, axis=0).repeat(8, axis=1)
    )
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream(codec, rate=30, options={"preset": "veryfast", **params})
        stream.width, stream.height, stream.pix_fmt = 320, 192, "yuv420p"
        for n in range(frames):
            picture = np.ascontiguousarray(texture[n : n + 192, n : n + 320])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    return np.frombuffer(out.getvalue(), dtype=np.uint8)


@pipeline_def(batch_size=1, num_threads=1, device_id=0, prefetch_queue_depth=1)
def graph():
    return fn.decoders.video(fn.external_source(name="mp4", ndim=1), device="mixed")


def attempt(clip):
    """How many frames come, or the error."""
    try:
        pipe = graph()
        pipe.build()
        pipe.feed_input("mp4", [clip])
        (out,) = pipe.run()
        return f"{out.as_cpu().at(0).shape[0]} frames"
    except RuntimeError as error:
        return next((line for line in str(error).splitlines() if "CUDA" in line), str(error)[-300:])


def main():
    control = attempt(encode("libx264", {"x264-params": "keyint=2:bframes=0"}))
    print(f"H.264 with a key frame every 2 frames: expected 8 frames, got: {control}")
    if control != "8 frames":
        print("cannot run here")
        return 2
    hevc = attempt(encode("libx265", {"x265-params": "keyint=1:bframes=0:log-level=none"}))
    print(f"HEVC of key frames alone: expected 8 frames, got: {hevc}")
    h264 = attempt(encode("libx264", {"x264-params": "keyint=1:bframes=0"}))
    print(f"H.264 of key frames alone: expected 8 frames, got: {h264}")
    shown = h264 != "8 frames"
    print("fault shown" if shown else "not shown")
    return 0 if shown else 1


if __name__ == "__main__":
    sys.exit(main())
