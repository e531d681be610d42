"""RGB is made with the BT.601 matrix whatever matrix the stream is tagged with, on the GPU and on the CPU.

A flat red picture is coded with the BT.709 matrix and tagged so (`matrix_coefficients` 1, as nearly all HD video is).

Needs: nvidia-dali, numpy, av; shows on the CPU, and on a GPU if there is one.
"""

import io
import sys

import av
import numpy as np
from nvidia.dali import fn, pipeline_def

RED = (200, 40, 40)
CLOSE = 4


def encode():
    picture = np.full((192, 320, 3), RED, dtype=np.uint8)
    out = io.BytesIO()
    with av.open(out, "w", format="webm") as container:
        options = {"deadline": "realtime", "cpu-used": "8", "lag-in-frames": "0", "auto-alt-ref": "0", "b": "4M"}
        stream = container.add_stream("libvpx-vp9", rate=30, options=options)
        stream.width, stream.height, stream.pix_fmt = 320, 192, "yuv420p"
        stream.codec_context.colorspace = 1  # BT.709, by ISO/IEC 23091-2
        stream.codec_context.color_primaries = 1
        stream.codec_context.color_trc = 1
        stream.codec_context.color_range = 1
        for _ in range(4):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame = frame.reformat(format="yuv420p", dst_colorspace="itu709", dst_color_range="MPEG")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return np.frombuffer(out.getvalue(), dtype=np.uint8)


def by_dali(clip, device):
    @pipeline_def(batch_size=1, num_threads=1, device_id=None if device == "cpu" else 0, prefetch_queue_depth=1)
    def graph():
        return fn.decoders.video(fn.external_source(name="webm", ndim=1), device=device)

    pipe = graph()
    pipe.build()
    pipe.feed_input("webm", [clip])
    (out,) = pipe.run()
    return np.array(out.as_cpu().at(0))[0].mean(axis=(0, 1))


def main():
    clip = encode()
    with av.open(io.BytesIO(clip.tobytes())) as container:
        frame = next(container.decode(video=0))
        luma = frame.to_ndarray()[:192].mean()
        print(f"the stream says matrix_coefficients {int(frame.colorspace)} (1 is BT.709); luma {luma:.0f}")
    shown, ran = False, False
    for device in ("cpu", "mixed"):
        try:
            got = by_dali(clip, device)
        except RuntimeError as error:
            print(f"device={device!r} does not run here: {str(error).splitlines()[-1][:200]}")
            continue
        ran = True
        print(f"device={device!r}: expected about {RED}, got {tuple(int(level) for level in got)}")
        shown |= bool(np.abs(got - RED).max() > CLOSE)
    print("fault shown" if shown else "not shown" if ran else "cannot run here")
    return 0 if shown else 1 if ran else 2


if __name__ == "__main__":
    sys.exit(main())
