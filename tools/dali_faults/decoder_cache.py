"""DALI's cache of hardware decoders mixes up clips of different heights: wrong pixels without an error.

NVDECCache (frames_decoder_gpu.cc) looks decoders up by `coded_width` and `coded_height`, but keeps them under
`ulTargetWidth` and `ulTargetHeight`, which are those of the display area. A clip of 320x180 is coded with 192 rows.
Once a clip that is really 192 high has been decoded, a 180-high one gets its decoder. That decoder's surfaces have
192 rows, and HandlePictureDisplay looks for the chroma plane behind row 180.

The display area belongs into the key. The same fault in torchcodec:
https://github.com/meta-pytorch/torchcodec/issues/1704

Needs: nvidia-dali, numpy, av, a GPU.
"""

import io
import sys

import av
import numpy as np
from nvidia.dali import fn, pipeline_def


def encode(codec, width, height, frames=8):
    """Coloured texture that moves, in an MP4."""
    grid = np.random.default_rng(0).integers(0, 256, (height // 8 + 9, width // 8 + 9, 3)).astype(np.uint8)
    texture = grid.repeat(8, axis=0).repeat(8, axis=1)
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        params = {"x264-params": "ref=1:bframes=0", "x265-params": "ref=1:bframes=0:log-level=none"}
        stream = container.add_stream(codec, rate=30, options={"preset": "veryfast", "crf": "18", **params})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for n in range(frames):
            picture = np.ascontiguousarray(texture[n : n + height, 2 * n : 2 * n + width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    return np.frombuffer(out.getvalue(), dtype=np.uint8)


@pipeline_def(batch_size=1, num_threads=1, device_id=0, prefetch_queue_depth=1)
def graph():
    return fn.decoders.video(fn.external_source(name="mp4", ndim=1), device="mixed")


def decode(clip):
    pipe = graph()
    pipe.build()
    pipe.feed_input("mp4", [clip])
    (out,) = pipe.run()
    return np.array(out.as_cpu().at(0)).astype(int)


def main():
    shown = False
    for codec, low, high in (("libx264", (320, 180), (320, 192)), ("libx264", (1920, 1080), (1920, 1088)),
                             ("libx265", (320, 180), (320, 192)), ("libx265", (1920, 1080), (1920, 1088))):  # fmt: skip
        clip, other = encode(codec, *low), encode(codec, *high)
        try:
            before = decode(clip)
        except RuntimeError as error:
            print(f"cannot run here: {error}")
            return 2
        decode(other)
        after = decode(clip)
        difference = np.abs(after - before)
        print(
            f"{codec} {low[0]}x{low[1]}, decoded before and after {high[0]}x{high[1]}: expected the same frames; they "
            f"differ by {difference.mean():.2f} levels on average, {difference.max()} at most"
        )
        shown |= bool(difference.any())
    print("fault shown" if shown else "not shown")
    return 0 if shown else 1


if __name__ == "__main__":
    sys.exit(main())
