"""GPU slot of room onepass: not to be delivered."""

from __future__ import annotations

import ctypes
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import torch

C = Path("/tmp/onepass-clips")


def make():
    from tests.support.clips import write
    from tools.clips import Recipe

    C.mkdir(exist_ok=True)
    from concurrent.futures import ThreadPoolExecutor

    jobs = []
    for name, w, h, codec in (
        ("1080", 1920, 1080, "h264"),
        ("720", 1280, 720, "h264"),
        ("1080hevc", 1920, 1080, "hevc"),
    ):
        for n in range(4):
            jobs.append(
                (
                    Recipe(
                        codec=codec, width=w, height=h, frames=45, gop=15, b_frames=2, seed=n, style="texture", crf=26
                    ),
                    C / f"{name}-{n}.mp4",
                )
            )
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda j: write(*j), jobs))
    print("made", len(jobs))


def batch_of(name, frames=16, clips=32):
    import tempfile

    from streamvid.fetch.encoded_batch import EncodedBatch
    from streamvid.transform.spec import DRAWS
    from streamvid.video.remux import store_clip
    from tests.support.reference import slice_of

    stored = [store_clip(C / f"{name}-{n}.mp4", Path(tempfile.mkdtemp())) for n in range(4)]
    slices = [slice_of(stored[n % 4], np.arange(15 * (n % 2), 15 * (n % 2) + frames)) for n in range(clips)]
    return EncodedBatch(
        slices=slices,
        clips=np.arange(clips),
        epochs=np.zeros(clips, np.int64),
        labels=np.arange(clips),
        valid=np.ones(clips, bool),
        mask=np.ones((clips, frames), bool),
        seconds=np.zeros((clips, frames)),
        heights=np.array([s.height for s in slices]),
        widths=np.array([s.width for s in slices]),
        rotations=np.zeros(clips, np.int64),
        gather=np.tile(np.arange(frames), (clips, 1)),
        random=np.random.default_rng(0).random((clips, DRAWS)),
        bytes_read=0,
        absent=np.full(clips, -1),
    )


class Batches:
    def __init__(self, batch, n):
        self.batch, self.n = batch, n

    def ready(self):
        return True

    def __next__(self):
        if not self.n:
            raise StopIteration
        self.n -= 1
        return self.batch

    def __iter__(self):
        return self


def profile():
    import streamvid as sv
    from streamvid.color import surfaces
    from streamvid.transform.params import ClipTransform
    from streamvid.transform.render import make_renderer

    t = sv.Transform(
        random_short_side=(256, 320), crop=224, horizontal_flip=0.5, mean=(0.45,) * 3, std=(0.225,) * 3, dtype="float16"
    )
    # the kernel alone
    from streamvid.color.render import PlaneFormat
    from streamvid.color.tags import Color

    for h, w in ((1080, 1920), (720, 1280), (2160, 3840), (360, 640)):
        for block, warps in ((128, 2), (128, 4), (256, 4), (256, 2), (64, 2)):
            n = 64
            surf = torch.randint(0, 255, (n, h * 3 // 2 * w), dtype=torch.uint8, device="cuda")
            out = torch.empty((n, 3, 224, 224), dtype=torch.float16, device="cuda")
            s = h / 256
            p = torch.from_numpy(
                surfaces.clip_params(
                    PlaneFormat(h, w, (2, 2), 8),
                    Color("bt709", False, (1, 0)),
                    start=(0, 0),
                    end=(224 * s, 224 * s),
                    size=(224, 224),
                    strides=(224 * 224, 224, 1),
                    mean=(120,) * 3,
                    std=(60,) * 3,
                )
            ).cuda()
            table = torch.tensor(
                [[surf[i].data_ptr(), w, w * h, out[i].data_ptr(), p.data_ptr()] for i in range(n)]
            ).cuda()
            import triton.language as tl

            from streamvid.color.surface_kernel import render

            def go():
                render[(-(-224 // block), 224, n)](
                    table,
                    SAMPLE=tl.uint8,
                    PAIR=tl.uint16,
                    BITS=8,
                    OUT=tl.float16,
                    RECOLOURS=False,
                    BLOCK=block,
                    ROW=surfaces.ROW,
                    FLOATS=surfaces.FLOATS,
                    num_warps=warps,
                )

            go()
            torch.cuda.synchronize()
            times = []
            for _ in range(8):
                a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                a.record()
                go()
                b.record()
                b.synchronize()
                times.append(a.elapsed_time(b))
            print(
                f"kernel {w}x{h} BLOCK {block} warps {warps}: {sorted(times)[4] * 512 / n:.3f} ms for 512", flush=True
            )
            del surf
    t0 = time.perf_counter()
    for _ in range(200):
        go()
    print(f"a launch in Python: {(time.perf_counter() - t0) / 200 * 1e6:.1f} us")
    torch.cuda.synchronize()

    def ahead(items):
        return items

    for threads in (8, 24):
        for name in ("1080", "720", "1080hevc"):
            batch = batch_of(name)
            renderer = make_renderer(ClipTransform(t, False, False), device_id=0, threads=threads, max_batch=32)
            print(type(renderer).__name__, name, "threads", threads, flush=True)
            for _ in renderer.run(Batches(batch, 4), ahead):
                pass
            torch.cuda.synchronize()
            t0 = time.perf_counter()
            n = 12
            for _ in renderer.run(Batches(batch, n), ahead):
                pass
            torch.cuda.synchronize()
            dt = time.perf_counter() - t0
            packets = sum(len(s.sizes) for s in batch.slices)
            print(
                f"  {n * 512 / dt:.0f} frames/s, {n * packets / dt:.0f} packets/s, {dt / n * 1e3:.1f} ms a batch",
                flush=True,
            )
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
                m = 6
                for _ in renderer.run(Batches(batch, m), ahead):
                    pass
                torch.cuda.synchronize()
            rows = [
                (e.device_time_total / 1e3 / m, e.count / m, e.key[:70])
                for e in prof.key_averages()
                if e.device_time_total
            ]
            for ms, count, key in sorted(rows, reverse=True)[:9]:
                print(f"    {ms:7.3f} ms {count:7.1f} calls a batch  {key}")
            print(f"    total {sum(r[0] for r in rows):.2f} ms a batch", flush=True)
            renderer.close()


def probe():
    """Which codecs PyNvVideoCodec's sessions take, with which packets; reconfiguring."""
    import tempfile

    import av
    import PyNvVideoCodec as nvc

    from streamvid.decode.cpu import InThreadDecoder
    from streamvid.video.remux import store_clip
    from tests.support.clips import write
    from tests.support.reference import whole
    from tools.clips import Recipe, hard_recipes

    for c in ("H264", "HEVC", "VP8", "VP9", "AV1", "MPEG4", "MPEG2", "MPEG1", "JPEG"):
        try:
            print(c, {k: v for k, v in dict(nvc.GetDecoderCaps(gpuid=0, codec=getattr(nvc.cudaVideoCodec, c))).items()})
        except Exception as e:
            print(c, "caps:", e)
    addr = ctypes.PyDLL(None).PyBytes_AsString
    addr.argtypes = [ctypes.py_object]
    addr.restype = ctypes.c_void_p
    stream = torch.cuda.Stream()

    def opened(codec, w, h):
        return nvc.CreateDecoder(
            gpuid=0,
            codec=getattr(nvc.cudaVideoCodec, codec),
            cudastream=stream.cuda_stream,
            usedevicememory=True,
            maxwidth=w,
            maxheight=h,
        )

    drv = ctypes.CDLL("libcuda.so.1")

    def surface(f):
        size = f.framesize()
        buf = np.empty(size, np.uint8)
        stream.synchronize()
        drv.cuMemcpyDtoH_v2(
            ctypes.c_void_p(buf.ctypes.data), ctypes.c_uint64(f.GetPtrToPlane(0)), ctypes.c_size_t(size)
        )
        return buf

    def feed(dec, data, ts):
        p = nvc.PacketData()
        if data:
            p.bsl_data = addr(data)
        p.bsl = len(data)
        p.pts = ts
        return list(dec.Decode(p))

    def planes(stored):
        out = {}
        for row, pic in InThreadDecoder().frames(whole(stored), limit_s=1e9):
            out[row] = [np.array(x) for x in pic.planes]
        return out

    hard = hard_recipes()
    tests = [
        ("VP9", "vp9"),
        ("VP9", "vp9_hidden_frames"),
        ("VP8", "vp8"),
        ("MPEG4", "mpeg4"),
        ("H264", "h264_intra"),
        ("HEVC", "hevc_intra"),
        ("VP9", "vp9_odd"),
        ("MPEG4", "mpeg4_odd"),
        ("H264", "h264_444_odd"),
        ("AV1", "av1"),
    ]
    for codec, name in tests:
        try:
            folder = Path(tempfile.mkdtemp())
            r = hard[name]
            st = store_clip(write(r, folder / f"s.{r.container}"), folder)
            s = whole(st)
            ref = planes(st)
            ends = np.cumsum(s.sizes)
            raw = [bytes(s.data[e - n : e]) for e, n in zip(ends, s.sizes)]
            if s.codec in ("h264", "hevc"):
                from streamvid.bitstream.annexb import parameter_sets
                from streamvid.bitstream.nal import to_annex_b

                ps = parameter_sets(s.codec, s.stsd)
                raw = to_annex_b(s.data, s.sizes, ps.length_size)
                raw[0] = ps.annex_b + raw[0]
            heads = {"plain": b""}
            with av.open(str(st.mp4)) as c:
                extra = c.streams.video[0].codec_context.extradata
            if extra and s.codec == "mpeg4":
                heads["extradata"] = bytes(extra)
            for label, head in heads.items():
                dec = opened(codec, st.width, st.height)
                got = []
                for n, data in enumerate(raw):
                    for f in feed(dec, (head if n == 0 else b"") + data, (n << 16)):
                        got.append((f.getPTS() >> 16, tuple(f.shape), f.framesize(), surface(f)))
                for f in feed(dec, b"", 0):
                    got.append((f.getPTS() >> 16, tuple(f.shape), f.framesize(), surface(f)))
                order = s.display_order.tolist()
                bad = 0
                first = None
                for pos, (packet, shape, size, buf) in enumerate(got):
                    rank = order[packet] if packet < len(order) else -1
                    want = ref.get(rank)
                    if want is None:
                        bad += 1
                        continue
                    y = want[0]
                    h, w = y.shape
                    pitch = shape[1]
                    luma = (
                        buf.reshape(-1, pitch)[:h, :w]
                        if y.dtype == np.uint8
                        else buf.view(np.uint16).reshape(-1, pitch)[:h, :w] >> 6
                    )
                    d = np.abs(luma.astype(int) - y).max()
                    rows = (
                        buf.reshape(-1, pitch) if y.dtype == np.uint8 else buf.view(np.uint16).reshape(-1, pitch) >> 6
                    )
                    uv = rows[-((h + 1) // 2) :, :]
                    du = (
                        np.abs(uv[: want[1].shape[0], 0 : 2 * want[1].shape[1] : 2].astype(int) - want[1]).max()
                        if uv.shape[1] >= 2 * want[1].shape[1]
                        else -1
                    )
                    if d or du:
                        bad += 1
                        first = first or (pos, packet, rank, int(d), int(du))
                print(
                    f"{name} {label}: {len(raw)} packets, {len(ref)} frames, got {len(got)}, wrong {bad} first {first}; pts order {[g[0] for g in got[:6]]} display {order[:6]} shape {got[0][1:3] if got else None} of {st.width}x{st.height}",
                    flush=True,
                )
        except Exception:
            print(name, "FAILED", traceback.format_exc()[-600:], flush=True)
    # Reconfiguring: sizes by turns through one decoder opened for the largest.
    try:
        sizes = [(1280, 720), (640, 360), (854, 480), (320, 180), (1280, 720)]
        from streamvid.bitstream.annexb import parameter_sets
        from streamvid.bitstream.nal import to_annex_b

        for codec in ("h264", "hevc"):
            clips = []
            for n, (w, h) in enumerate(sizes):
                folder = Path(tempfile.mkdtemp())
                st = store_clip(
                    write(
                        Recipe(codec=codec, width=w, height=h, frames=12, gop=12, b_frames=2, seed=n, style="texture"),
                        folder / "s.mp4",
                    ),
                    folder,
                )
                s = whole(st)
                ps = parameter_sets(s.codec, s.stsd)
                raw = to_annex_b(s.data, s.sizes, ps.length_size)
                raw[0] = ps.annex_b + raw[0]
                clips.append((st, s, raw, planes(st)))
            for flush in (True, False):
                dec = opened(codec.upper(), 1280, 720)
                wrong = total = 0
                stamps = []
                got = []
                t0 = time.perf_counter()
                for turn in range(10):
                    st, s, raw, ref = clips[turn % len(clips)]
                    for n, data in enumerate(raw):
                        for f in feed(dec, data, (turn << 40) | (n << 16)):
                            got.append((f.getPTS(), tuple(f.shape), f.framesize(), surface(f)))
                    if flush or turn == 9:
                        for f in feed(dec, b"", 0):
                            got.append((f.getPTS(), tuple(f.shape), f.framesize(), surface(f)))
                dt = time.perf_counter() - t0
                shapes = {}
                for pts, shape, size, buf in got:
                    turn, packet = pts >> 40, (pts >> 16) & 0xFFFFFF
                    st, s, raw, ref = clips[turn % len(clips)]
                    want = ref[int(s.display_order[packet])]
                    h, w = want[0].shape
                    total += 1
                    shapes[(w, h)] = (shape, size)
                    exact = len(buf) >= w * h and np.array_equal(buf[: w * h].reshape(h, w), want[0])
                    wrong += not exact
                print(
                    f"reconfigure {codec} flush={flush}: {total} frames, wrong with tight pitch {wrong}, {dt * 1e3:.0f} ms; shapes reported {shapes}",
                    flush=True,
                )
    except Exception:
        print("reconfigure FAILED", traceback.format_exc()[-900:])


{"make": make, "profile": profile, "probe": probe}[sys.argv[1]]()
