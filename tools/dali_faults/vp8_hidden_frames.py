"""VP8 with hidden pictures: packets are counted as frames, so more frames come than the clip has.

In VP8 a picture that is not shown (`show_frame` 0, RFC 6386 section 9.1) has a packet of its own, which decodes to
nothing. libvpx writes such packets with `auto-alt-ref`; here the bit is cleared in every eighth packet.

Needs: nvidia-dali, numpy, av; shows on the CPU, and on a GPU if there is one.
"""

import io
import sys

import av
import numpy as np
from nvidia.dali import fn, pipeline_def

FRAMES, EVERY = 48, 8


def encode(every):
    """A bright square that moves over a gradient, in a WebM; every so many packets are hidden, 0 for none."""
    ground = np.tile(np.linspace(0, 200, 320).astype(np.uint8)[:, None], (192, 1, 3))
    out = io.BytesIO()
    with av.open(out, "w", format="webm") as container:
        options = {"deadline": "realtime", "cpu-used": "-8", "lag-in-frames": "0", "auto-alt-ref": "0", "b": "2M"}
        stream = container.add_stream("libvpx", rate=30, options=options)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = 320, 192, "yuv420p", FRAMES
        stream.codec_context.thread_count = 1  # libvpx's threads wait for each other in busy loops
        number = 0
        for n in range(FRAMES + 1):
            picture = None
            if n < FRAMES:
                image = ground.copy()
                image[2 * n : 2 * n + 64, 4 * n : 4 * n + 64] = 255
                picture = av.VideoFrame.from_ndarray(image, format="rgb24")
            for packet in stream.encode(picture):
                if every and number % every == every - 1:
                    data = bytearray(bytes(packet))
                    data[0] &= ~0x10
                    packet.update(bytes(data))
                number += 1
                container.mux(packet)
    return np.frombuffer(out.getvalue(), dtype=np.uint8)


def by_ffmpeg(clip):
    with av.open(io.BytesIO(clip.tobytes())) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]).astype(int)


def by_dali(clip, device):
    @pipeline_def(batch_size=1, num_threads=1, device_id=None if device == "cpu" else 0, prefetch_queue_depth=1)
    def graph():
        return fn.decoders.video(fn.external_source(name="webm", ndim=1), device=device)

    pipe = graph()
    pipe.build()
    pipe.feed_input("webm", [clip])
    (out,) = pipe.run()
    return np.array(out.as_cpu().at(0)).astype(int)


def main():
    shown, ran = False, False
    for device in ("cpu", "mixed"):
        for every in (0, EVERY):
            clip = encode(every)
            expected = by_ffmpeg(clip)[:, ::4, ::4]
            what = f"every {every}th packet hidden" if every else "no packet hidden"
            try:
                got = by_dali(clip, device)
            except RuntimeError as error:
                print(f"device={device!r}, {what}: error: {str(error).splitlines()[-1][:200]}")
                if not every:
                    break
                shown = True
                continue
            nearest = [int(np.abs(expected - frame).mean(axis=(1, 2, 3)).argmin()) for frame in got[:, ::4, ::4]]
            print(f"device={device!r}, {what}: expected frames 0 to {len(expected) - 1}, got {len(got)}: {nearest}")
            ran = True
            shown |= every > 0 and nearest != list(range(len(expected)))
    print("fault shown" if shown else "not shown" if ran else "cannot run here")
    return 0 if shown else 1 if ran else 2


if __name__ == "__main__":
    sys.exit(main())
