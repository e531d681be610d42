"""The Triton kernel of `streamvid.color.render`. Importing this module needs Triton."""

import triton
import triton.language as tl


@triton.jit
def _share(at, centre, reach):
    return tl.maximum(0.0, 1.0 - tl.abs(at + 0.5 - centre) / reach)


@triton.jit
def _luma(base, pitch, height, width, cy, ry, taps_y, cx, rx, taps_x, mask, SHIFT: tl.constexpr):  # noqa: N803
    """The weighted mean of luma about (cy, cx), for a row of output pixels."""
    y0, x0 = tl.floor(cy - ry), tl.floor(cx - rx)
    total = tl.zeros_like(cx)
    sum_y = 0.0
    sum_x = tl.zeros_like(cx)
    for j in range(taps_x):
        sum_x += _share(x0 + j, cx, rx)
    for i in range(taps_y):
        wy = _share(y0 + i, cy, ry)
        sum_y += wy
        row = tl.minimum(tl.maximum(y0 + i, 0.0), height - 1.0).to(tl.int64)
        line = tl.zeros_like(cx)
        for j in range(taps_x):
            column = tl.minimum(tl.maximum(x0 + j, 0.0), width - 1.0).to(tl.int32)
            sample = tl.load(base + row * pitch + column, mask=mask, other=0).to(tl.int32)
            if SHIFT:
                sample = (sample & 0xFFFF) >> SHIFT
            line += _share(x0 + j, cx, rx) * sample.to(tl.float32)
        total += wy * line
    return total / (sum_y * sum_x)


@triton.jit
def _chroma(base, pitch, height, width, cy, ry, taps_y, cx, rx, taps_x, mask, SHIFT: tl.constexpr):  # noqa: N803
    """The same of interleaved U and V."""
    y0, x0 = tl.floor(cy - ry), tl.floor(cx - rx)
    total_u = tl.zeros_like(cx)
    total_v = tl.zeros_like(cx)
    sum_y = 0.0
    sum_x = tl.zeros_like(cx)
    for j in range(taps_x):
        sum_x += _share(x0 + j, cx, rx)
    for i in range(taps_y):
        wy = _share(y0 + i, cy, ry)
        sum_y += wy
        row = tl.minimum(tl.maximum(y0 + i, 0.0), height - 1.0).to(tl.int64)
        line_u = tl.zeros_like(cx)
        line_v = tl.zeros_like(cx)
        for j in range(taps_x):
            column = tl.minimum(tl.maximum(x0 + j, 0.0), width - 1.0).to(tl.int32)
            at = base + row * pitch + 2 * column
            u = tl.load(at, mask=mask, other=0).to(tl.int32)
            v = tl.load(at + 1, mask=mask, other=0).to(tl.int32)
            if SHIFT:
                u = (u & 0xFFFF) >> SHIFT
                v = (v & 0xFFFF) >> SHIFT
            share = _share(x0 + j, cx, rx)
            line_u += share * u.to(tl.float32)
            line_v += share * v.to(tl.float32)
        total_u += wy * line_u
        total_v += wy * line_v
    return total_u / (sum_y * sum_x), total_v / (sum_y * sum_x)


@triton.jit
def render(
    surfaces, surface_size, pitch, chroma_at, height, width, table, frame_params, out, frame_out, out_height, out_width,
    stride_c, stride_y, stride_x, SHIFT: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Surfaces [n, rows, pitch] of NV12 or P016 → pixels of `out` at frame_out[n] (in elements), by 32 floats from
    table[32 * frame_params[n]] on: start and scale of rows, of columns, siting x and y, taps of luma y, x, of chroma y,
    x, the matrix [3, 4], mean and factor [3, 2]."""
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.program_id(1)
    frame = tl.program_id(2)
    mask = x < out_width
    p = table + tl.load(frame_params + frame) * 32
    start_y, scale_y, start_x, scale_x = tl.load(p), tl.load(p + 1), tl.load(p + 2), tl.load(p + 3)
    siting_x, siting_y = tl.load(p + 4), tl.load(p + 5)
    cy = start_y + (y.to(tl.float32) + 0.5) * scale_y
    cx = start_x + (x.to(tl.float32) + 0.5) * scale_x
    base = surfaces + frame.to(tl.int64) * surface_size
    luma = _luma(
        base, pitch, height, width, cy, tl.maximum(scale_y, 1.0), tl.load(p + 6).to(tl.int32), cx,
        tl.maximum(scale_x, 1.0), tl.load(p + 7).to(tl.int32), mask, SHIFT,
    )  # fmt: skip
    u, v = _chroma(
        base + chroma_at, pitch, (height + 1) // 2, (width + 1) // 2, cy * 0.5 + siting_y,
        tl.maximum(scale_y * 0.5, 1.0), tl.load(p + 8).to(tl.int32), cx * 0.5 + siting_x,
        tl.maximum(scale_x * 0.5, 1.0), tl.load(p + 9).to(tl.int32), mask, SHIFT,
    )  # fmt: skip
    at = out + tl.load(frame_out + frame) + y * stride_y + x * stride_x
    for c in tl.static_range(3):
        m = p + 10 + 4 * c
        level = tl.load(m) * luma + tl.load(m + 1) * u + tl.load(m + 2) * v + tl.load(m + 3)
        value = tl.floor(tl.minimum(tl.maximum(level, 0.0), 255.0) + 0.5)
        if out.dtype.element_ty != tl.uint8:
            value = (value - tl.load(p + 22 + 2 * c)) * tl.load(p + 23 + 2 * c)
        tl.store(at + c * stride_c, value.to(out.dtype.element_ty), mask=mask)
