"""The Triton kernel of `streamvid.color.surfaces`. Importing this module needs Triton."""

import triton
import triton.language as tl


@triton.jit
def _share(at, centre, reach):
    return tl.maximum(0.0, 1.0 - tl.abs(at + 0.5 - centre) * (1.0 / reach))


@triton.jit
def _inside(at, count):
    return tl.minimum(tl.maximum(at, 0.0), count - 1.0).to(tl.int32)


@triton.jit
def _luma(base, pitch, height, width, cy, ry, taps_y, cx, rx, taps_x, mask, shift, SAMPLE: tl.constexpr):  # noqa: N803
    """The weighted mean of luma about (cy, cx), for a row of output pixels."""
    y0, x0 = tl.floor(cy - ry), tl.floor(cx - rx)
    base = base.to(tl.pointer_type(SAMPLE))
    sum_y = 0.0
    for i in range(taps_y):
        sum_y += _share(y0 + i, cy, ry)
    sum_x = tl.zeros_like(cx)
    total = tl.zeros_like(cx)
    for j in range(taps_x):
        wx = _share(x0 + j, cx, rx)
        sum_x += wx
        column = base + _inside(x0 + j, width)
        line = tl.zeros_like(cx)
        for i in range(taps_y):
            sample = tl.load(column + _inside(y0 + i, height) * pitch, mask=mask, other=0).to(tl.int32) >> shift
            line += _share(y0 + i, cy, ry) * sample.to(tl.float32)
        total += wx * line
    return total / (sum_y * sum_x)


@triton.jit
def _chroma(
    base, pitch, height, width, cy, ry, taps_y, cx, rx, taps_x, mask, shift, PAIR: tl.constexpr, BITS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """The same of interleaved U and V, which one load reads together."""
    y0, x0 = tl.floor(cy - ry), tl.floor(cx - rx)
    base = base.to(tl.pointer_type(PAIR))
    sum_y = 0.0
    for i in range(taps_y):
        sum_y += _share(y0 + i, cy, ry)
    sum_x = tl.zeros_like(cx)
    total_u = tl.zeros_like(cx)
    total_v = tl.zeros_like(cx)
    for j in range(taps_x):
        wx = _share(x0 + j, cx, rx)
        sum_x += wx
        column = base + _inside(x0 + j, width)
        line_u = tl.zeros_like(cx)
        line_v = tl.zeros_like(cx)
        for i in range(taps_y):
            both = tl.load(column + _inside(y0 + i, height) * pitch, mask=mask, other=0)
            wy = _share(y0 + i, cy, ry)
            line_u += wy * ((both & ((1 << BITS) - 1)).to(tl.int32) >> shift).to(tl.float32)
            line_v += wy * ((both >> BITS).to(tl.int32) >> shift).to(tl.float32)
        total_u += wx * line_u
        total_v += wx * line_v
    return total_u / (sum_y * sum_x), total_v / (sum_y * sum_x)


@triton.jit
def _level(p, of, a, b, c):
    """A row of a matrix, clipped and rounded."""
    level = tl.load(p + of) * a + tl.load(p + of + 1) * b + tl.load(p + of + 2) * c + tl.load(p + of + 3)
    return tl.floor(tl.minimum(tl.maximum(level, 0.0), 255.0) + 0.5)


@triton.jit
def _store(out, step, p, of, level, mask, OUT: tl.constexpr):  # noqa: N803
    value = (level - tl.load(p + of)) * tl.load(p + of + 1)
    tl.store(out + step, value.to(OUT), mask=mask)


@triton.jit
def render(
    table, SAMPLE: tl.constexpr, PAIR: tl.constexpr, BITS: tl.constexpr, OUT: tl.constexpr,  # noqa: N803
    RECOLOURS: tl.constexpr, BLOCK: tl.constexpr, ROW: tl.constexpr, FLOATS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Rows of `table`, as `streamvid.color.surfaces` lays them out: one program writes BLOCK pixels of one line."""
    row = table + tl.program_id(2) * ROW
    surface, pitch, chroma_at = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    ints = tl.load(row + 4).to(tl.pointer_type(tl.int64))
    p = (ints + FLOATS).to(tl.pointer_type(tl.float32))
    height, width = tl.load(ints).to(tl.float32), tl.load(ints + 1).to(tl.float32)
    out_height, out_width = tl.load(ints + 2), tl.load(ints + 3)
    y = tl.program_id(1)
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if y < out_height:
        mask = x < out_width
        shift = tl.load(ints + 7).to(tl.int32)
        scale_y, scale_x = tl.load(p + 1), tl.load(p + 3)
        cy = tl.load(p) + (y.to(tl.float32) + 0.5) * scale_y
        cx = tl.load(p + 2) + (x.to(tl.float32) + 0.5) * scale_x
        luma = _luma(
            surface, pitch, height, width, cy, tl.maximum(scale_y, 1.0), tl.load(p + 6).to(tl.int32),
            cx, tl.maximum(scale_x, 1.0), tl.load(p + 7).to(tl.int32), mask, shift, SAMPLE,
        )  # fmt: skip
        u, v = _chroma(
            surface + chroma_at, pitch // 2, tl.floor((height + 1.0) * 0.5), tl.floor((width + 1.0) * 0.5),
            cy * 0.5 + tl.load(p + 5), tl.maximum(scale_y * 0.5, 1.0), tl.load(p + 8).to(tl.int32),
            cx * 0.5 + tl.load(p + 4), tl.maximum(scale_x * 0.5, 1.0), tl.load(p + 9).to(tl.int32), mask, shift,
            PAIR, BITS,
        )  # fmt: skip
        r, g, b = _level(p, 10, luma, u, v), _level(p, 14, luma, u, v), _level(p, 18, luma, u, v)
        if RECOLOURS:
            r, g, b = _level(p, 28, r, g, b), _level(p, 32, r, g, b), _level(p, 36, r, g, b)
        out = tl.load(row + 3).to(tl.pointer_type(OUT)) + y * tl.load(ints + 5) + x * tl.load(ints + 6)
        step = tl.load(ints + 4)
        _store(out, 0 * step, p, 22, r, mask, OUT)
        _store(out, step, p, 24, g, mask, OUT)
        _store(out, 2 * step, p, 26, b, mask, OUT)
