"""A frame number that comes twice in `frames=` makes the decoder go back to the key frame and decode all of it again.

`frames=[40, 40, 40]` needs one picture three times. DALI seeks for each; so does `pad_mode="edge"`, which repeats the
last frame. A copy of the frame before would do.

Needs: nvidia-dali, numpy, av; shows on the CPU, and on a GPU if there is one.
"""

import io
import sys
import time

import av
import numpy as np
from nvidia.dali import fn, pipeline_def, types

FRAMES, REPEATS = 120, 16
SLOWER = 3.0


def encode():
    """A bright square that moves over a gradient, one key frame, in a WebM."""
    ground = np.tile(np.linspace(0, 200, 640).astype(np.uint8)[:, None], (384, 1, 3))
    out = io.BytesIO()
    with av.open(out, "w", format="webm") as container:
        options = {"deadline": "realtime", "cpu-used": "8", "lag-in-frames": "0", "auto-alt-ref": "0", "b": "4M"}
        stream = container.add_stream("libvpx-vp9", rate=30, options={**options, "keyint_min": str(FRAMES)})
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = 640, 384, "yuv420p", FRAMES
        for n in range(FRAMES):
            picture = ground.copy()
            picture[2 * n : 2 * n + 64, 4 * n : 4 * n + 64] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    return np.frombuffer(out.getvalue(), dtype=np.uint8)


def seconds(clip, numbers, device):
    """For one clip, the best of three."""

    @pipeline_def(batch_size=1, num_threads=1, device_id=None if device == "cpu" else 0, prefetch_queue_depth=1)
    def graph():
        wanted = types.Constant(np.array(numbers, dtype=np.int32))
        return fn.decoders.video(fn.external_source(name="webm", ndim=1), frames=wanted, device=device)

    pipe = graph()
    pipe.build()
    taken = []
    for _ in range(4):
        started = time.perf_counter()
        pipe.feed_input("webm", [clip])
        (out,) = pipe.run()
        out.as_cpu()
        taken.append(time.perf_counter() - started)
    return min(taken[1:])


def main():
    clip = encode()
    last = FRAMES - 1
    shown, ran = False, False
    for device in ("cpu", "mixed"):
        try:
            once = seconds(clip, [last], device)
            often = seconds(clip, [last] * REPEATS, device)
            rising = seconds(clip, list(range(FRAMES - REPEATS, FRAMES)), device)
        except RuntimeError as error:
            print(f"device={device!r} does not run here: {str(error).splitlines()[-1][:200]}")
            continue
        ran = True
        print(
            f"device={device!r}: frame {last} once {1000 * once:.1f} ms, {REPEATS} frames up to it "
            f"{1000 * rising:.1f} ms, frame {last} {REPEATS} times: expected about the same, took {1000 * often:.1f} ms"
        )
        shown |= often > SLOWER * rising
    print("fault shown" if shown else "not shown" if ran else "cannot run here")
    return 0 if shown else 1 if ran else 2


if __name__ == "__main__":
    sys.exit(main())
