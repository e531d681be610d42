"""VP9 with hidden pictures comes out wrong on the GPU: from the first superframe on, frames are shifted or wrong.

libvpx hides alternate reference pictures (`auto-alt-ref`, its default in two passes): in a superframe with the next
picture, or shown later by a packet that decodes to nothing (`show_existing_frame`). By frames_decoder_gpu.cc, both
pictures of a superframe get the packet's time, so the first, which is hidden, is taken for the frame; and a packet
that decodes to nothing leaves its time in the queue for the next picture. FFmpeg, and DALI on the CPU, give the right
frames.

Needs: nvidia-dali, numpy, av; a GPU for the half that is wrong.
"""

import io
import sys

import av
import numpy as np
from nvidia.dali import fn, pipeline_def

FRAMES = 96
FAR = 8.0
"""Mean difference in levels above which it is another frame; 1 to 2 between decoders are usual."""


def encode(hidden):
    """A bright square that moves over a gradient, in a WebM."""
    ramp = np.linspace(0, 200, 320).astype(np.uint8)
    ground = np.stack(
        [np.tile(ramp, (192, 1)), np.tile(ramp[::-1], (192, 1)), np.full((192, 320), 90, np.uint8)], axis=2
    )
    alt = {"auto-alt-ref": "1", "lag-in-frames": "25", "cpu-used": "5", "b": "100k"}
    plain = {"auto-alt-ref": "0", "lag-in-frames": "0", "cpu-used": "8", "b": "1M"}
    options = {"deadline": "realtime", "keyint_min": str(FRAMES), **(alt if hidden else plain)}
    out = io.BytesIO()
    with av.open(out, "w", format="webm") as container:
        stream = container.add_stream("libvpx-vp9", rate=30, options=options)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = 320, 192, "yuv420p", FRAMES
        for n in range(FRAMES):
            picture = ground.copy()
            picture[n : n + 64, 2 * n : 2 * n + 64] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
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


def hidden_in(clip):
    """Packets that are superframes (their last byte is a marker, 0b110…), or that show a picture again."""
    with av.open(io.BytesIO(clip.tobytes())) as container:
        packets = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    return sum(packet[-1] >> 5 == 0b110 for packet in packets), sum(packet[0] & 0xF8 == 0x88 for packet in packets)


def wrong_frames(clip, device):
    """The frames that are not FFmpeg's at their place: nearer to another of its frames, or far from all."""
    expected, got = by_ffmpeg(clip), by_dali(clip, device)
    if len(got) != len(expected):
        print(f"device={device!r}: {len(expected)} frames expected, {len(got)} came")
    wrong = []
    for n, frame in enumerate(got):
        away = np.abs(expected - frame).mean(axis=(1, 2, 3))
        if away.argmin() != n or away.min() > FAR:
            wrong.append(n)
    return wrong + list(range(len(got), len(expected)))


def main():
    plain, hidden = encode(False), encode(True)
    print("without hidden pictures: {} superframes, {} shown again".format(*hidden_in(plain)))
    print("with hidden pictures: {} superframes, {} shown again".format(*hidden_in(hidden)))
    shown, ran = False, False
    for device in ("cpu", "mixed"):
        try:
            control, wrong = wrong_frames(plain, device), wrong_frames(hidden, device)
        except RuntimeError as error:
            print(f"device={device!r} does not run here: {str(error).splitlines()[-1][:200]}")
            continue
        print(f"device={device!r}: wrong frames without hidden pictures: {len(control)} of {FRAMES}")
        print(f"device={device!r}: wrong frames with hidden pictures: {len(wrong)} of {FRAMES}; the first: {wrong[:8]}")
        ran |= device == "mixed"
        shown |= bool(wrong) and not control
    print("fault shown" if shown else "not shown" if ran else "cannot run here")
    return 0 if shown else 1 if ran else 2


if __name__ == "__main__":
    sys.exit(main())
