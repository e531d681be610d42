"""Motion JPEG cannot be decoded on the GPU, though frames_decoder_gpu.cc maps it to NVDEC's cudaVideoCodec_JPEG.

The CPU variant decodes the same file.

Needs: nvidia-dali, numpy, av, a GPU.
"""

import io
import sys

import av
import numpy as np
from nvidia.dali import fn, pipeline_def


def encode(frames=8):
    """Texture that moves, in an AVI."""
    texture = (
        np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8).repeat(8, axis=0).repeat(8, axis=1)
    )
    out = io.BytesIO()
    with av.open(out, "w", format="avi") as container:
        stream = container.add_stream("mjpeg", rate=30)
        stream.width, stream.height, stream.pix_fmt = 320, 192, "yuvj420p"
        for n in range(frames):
            picture = np.ascontiguousarray(texture[n : n + 192, n : n + 320])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    return np.frombuffer(out.getvalue(), dtype=np.uint8)


def attempt(clip, device):
    """How many frames come, or the error."""

    @pipeline_def(batch_size=1, num_threads=1, device_id=None if device == "cpu" else 0, prefetch_queue_depth=1)
    def graph():
        return fn.decoders.video(fn.external_source(name="avi", ndim=1), device=device)

    try:
        pipe = graph()
        pipe.build()
        pipe.feed_input("avi", [clip])
        (out,) = pipe.run()
        return f"{out.as_cpu().at(0).shape[0]} frames"
    except RuntimeError as error:
        lines = str(error).splitlines()
        return next((line for line in lines if "CUDA" in line or "upport" in line or "Assert" in line), lines[-1])


def main():
    clip = encode()
    on_cpu = attempt(clip, "cpu")
    print(f"device='cpu': expected 8 frames, got: {on_cpu}")
    on_gpu = attempt(clip, "mixed")
    print(f"device='mixed': expected 8 frames, got: {on_gpu}")
    if on_cpu != "8 frames" or "CUDA is not available" in on_gpu:
        print("cannot run here")
        return 2
    shown = on_gpu != "8 frames"
    print("fault shown" if shown else "not shown")
    return 0 if shown else 1


if __name__ == "__main__":
    sys.exit(main())
