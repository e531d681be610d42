"""The Triton kernel of `streamvid.color.surfaces`. Importing this module needs Triton."""

import triton
import triton.language as tl


@triton.jit
def _triangle(at, centre, reach):
    return tl.maximum(0.0, 1.0 - tl.abs(at + 0.5 - centre) * (1.0 / reach))


@triton.jit
def _share(at, centre, reach, count):
    """The weight of the sample at `at`; 0 outside of 0 to count - 1."""
    return tl.where((at >= 0.0) & (at < count), _triangle(at, centre, reach), 0.0)


@triton.jit
def _inside(at, count):
    return tl.minimum(tl.maximum(at, 0.0), count - 1.0).to(tl.int32)


@triton.jit
def _columns(start, scale, x, last_x, reach, taps, width):
    """First and last source sample of a line for the pixels x to last_x, with one more at both ends, because a pixel's
    centre may be rounded differently elsewhere."""
    first = tl.floor(start + (x.to(tl.float32) + 0.5) * scale - reach) - 1.0
    last = tl.floor(start + (last_x.to(tl.float32) + 0.5) * scale - reach) + taps.to(tl.float32)
    return _inside(first, width), _inside(last, width)


@triton.jit
def _down(
    base, pitch, height, cy, ry, taps, begin, last, shift,
    PAIR: tl.constexpr, BITS: tl.constexpr, SPAN: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Weighted vertical sums for SPAN pairs of columns from `begin` on, and the sum of the weights. A load reads a pair
    of samples. Sums of pairs after `last` are undefined."""
    y0 = tl.floor(cy - ry)
    pairs = tl.arange(0, SPAN)
    there = pairs <= last - begin
    base = base.to(tl.pointer_type(PAIR)) + begin
    first, second = tl.zeros([SPAN], tl.float32), tl.zeros([SPAN], tl.float32)
    weights = 0.0
    for i in range(taps):
        both = tl.load(base + _inside(y0 + i, height) * pitch + pairs, mask=there)
        low, high = (both & ((1 << BITS) - 1)).to(tl.int32), (both >> BITS).to(tl.int32)
        if BITS > 8:
            low, high = low >> shift, high >> shift
        weight = _share(y0 + i, cy, ry, height)
        weights += weight
        first += weight * low.to(tl.float32)
        second += weight * high.to(tl.float32)
    return first, second, weights


@triton.jit
def _picked(line, place, COUNT: tl.constexpr):  # noqa: N803
    """The samples of a piece of a line at `place`; 0 for places outside of the piece."""
    there = (place >= 0) & (place < COUNT)
    return tl.where(there, tl.gather(line, tl.where(there, place, 0), 0), 0.0)


@triton.jit
def _luma(
    base, pitch, height, width, cy, ry, taps_y, cx, rx, taps_x, first, last, shift,
    PAIR: tl.constexpr, BITS: tl.constexpr, SPAN: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """The weighted mean of luma around (cy, cx), for pixels of a line: vertical sums of the columns `first` to `last`,
    2 × SPAN columns at a time, then horizontal sums."""
    x0 = tl.floor(cx - rx)
    total, weights, down = tl.zeros_like(cx), tl.zeros_like(cx), 0.0
    for begin in range(first // 2, last // 2 + 1, SPAN):
        even, odd, down = _down(base, pitch, height, cy, ry, taps_y, begin, last // 2, shift, PAIR, BITS, SPAN)
        line = tl.interleave(even, odd)
        weights = tl.zeros_like(cx)
        for j in range(taps_x):
            weight = _share(x0 + j, cx, rx, width)
            weights += weight
            total += weight * _picked(line, _inside(x0 + j, width) - 2 * begin, 2 * SPAN)
    return total / (down * weights)


@triton.jit
def _chroma(
    base, pitch, height, width, cy, ry, taps_y, cx, rx, taps_x, first, last, shift,
    PAIR: tl.constexpr, BITS: tl.constexpr, SPAN: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """`_luma` for interleaved U and V, SPAN columns at a time."""
    x0 = tl.floor(cx - rx)
    total_u, total_v = tl.zeros_like(cx), tl.zeros_like(cx)
    weights, down = tl.zeros_like(cx), 0.0
    for begin in range(first, last + 1, SPAN):
        line_u, line_v, down = _down(base, pitch, height, cy, ry, taps_y, begin, last, shift, PAIR, BITS, SPAN)
        weights = tl.zeros_like(cx)
        for j in range(taps_x):
            weight, place = _share(x0 + j, cx, rx, width), _inside(x0 + j, width) - begin
            weights += weight
            total_u += weight * _picked(line_u, place, SPAN)
            total_v += weight * _picked(line_v, place, SPAN)
    return total_u / (down * weights), total_v / (down * weights)


@triton.jit
def _rounded(level):
    return tl.floor(tl.minimum(tl.maximum(level, 0.0), 255.0) + 0.5)


@triton.jit
def _level(p, of, a, b, c):
    """A row of a matrix applied to (a, b, c, 1), clipped and rounded."""
    return _rounded(tl.load(p + of) * a + tl.load(p + of + 1) * b + tl.load(p + of + 2) * c + tl.load(p + of + 3))


@triton.jit
def _store(out, step, p, of, level, mask, OUT: tl.constexpr):  # noqa: N803
    value = (level - tl.load(p + of)) * tl.load(p + of + 1)
    tl.store(out + step, value.to(OUT), mask=mask)


@triton.jit
def _finish(row, ints, p, r, g, b, x, y, mask, OUT: tl.constexpr, RECOLOURS: tl.constexpr):  # noqa: N803
    """Change the colours of a line's pixels if RECOLOURS, normalise and store them."""
    if RECOLOURS:
        r, g, b = _level(p, 28, r, g, b), _level(p, 32, r, g, b), _level(p, 36, r, g, b)
    out = tl.load(row + 3).to(tl.pointer_type(OUT)) + y * tl.load(ints + 5) + x * tl.load(ints + 6)
    step = tl.load(ints + 4)
    _store(out, 0 * step, p, 22, r, mask, OUT)
    _store(out, step, p, 24, g, mask, OUT)
    _store(out, 2 * step, p, 26, b, mask, OUT)


@triton.jit
def render(
    table, PAIR: tl.constexpr, BITS: tl.constexpr, OUT: tl.constexpr,  # noqa: N803
    RECOLOURS: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr, ROW: tl.constexpr, FLOATS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Render the surfaces in `table` (`streamvid.color.surfaces.ROW`): one program writes BLOCK pixels of one line."""
    row = table + tl.program_id(2) * ROW
    surface, pitch, chroma_at = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    ints = tl.load(row + 4).to(tl.pointer_type(tl.int64))
    p = (ints + FLOATS).to(tl.pointer_type(tl.float32))
    height, width = tl.load(ints).to(tl.float32), tl.load(ints + 1).to(tl.float32)
    out_height, out_width = tl.load(ints + 2), tl.load(ints + 3)
    y, x_first = tl.program_id(1), tl.program_id(0) * BLOCK
    if (y < out_height) & (x_first < out_width):
        x = x_first + tl.arange(0, BLOCK)
        x_last = tl.minimum(x_first + BLOCK, out_width.to(tl.int32)) - 1
        mask = x <= x_last
        shift = tl.load(ints + 7).to(tl.int32)
        start_y, scale_y, start_x, scale_x = tl.load(p), tl.load(p + 1), tl.load(p + 2), tl.load(p + 3)
        cy = start_y + (y.to(tl.float32) + 0.5) * scale_y
        cx = start_x + (x.to(tl.float32) + 0.5) * scale_x
        reach, taps = tl.maximum(scale_x, 1.0), tl.load(p + 7).to(tl.int32)
        first, last = _columns(start_x, scale_x, x_first, x_last, reach, taps, width)
        luma = _luma(
            surface, pitch // 2, height, width, cy, tl.maximum(scale_y, 1.0), tl.load(p + 6).to(tl.int32),
            cx, reach, taps, first, last, shift, PAIR, BITS, SPAN,
        )  # fmt: skip
        start, reach, taps = tl.load(p + 4), tl.maximum(scale_x * 0.5, 1.0), tl.load(p + 9).to(tl.int32)
        half = tl.floor((width + 1.0) * 0.5)
        first, last = _columns(start_x * 0.5 + start, scale_x * 0.5, x_first, x_last, reach, taps, half)
        u, v = _chroma(
            surface + chroma_at, pitch // 2, tl.floor((height + 1.0) * 0.5), half,
            cy * 0.5 + tl.load(p + 5), tl.maximum(scale_y * 0.5, 1.0), tl.load(p + 8).to(tl.int32),
            cx * 0.5 + start, reach, taps, first, last, shift, PAIR, BITS, SPAN,
        )  # fmt: skip
        r, g, b = _level(p, 10, luma, u, v), _level(p, 14, luma, u, v), _level(p, 18, luma, u, v)
        _finish(row, ints, p, r, g, b, x, y, mask, OUT, RECOLOURS)


@triton.jit
def render_rgb(
    table, OUT: tl.constexpr, RECOLOURS: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr,  # noqa: N803
    ROW: tl.constexpr, FLOATS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """`render` for sources in RGB, uint8 [height, width, 3]: without conversion, and with the outermost samples
    repeated at edges."""
    row = table + tl.program_id(2) * ROW
    base, pitch = tl.load(row).to(tl.pointer_type(tl.uint8)), tl.load(row + 1)
    ints = tl.load(row + 4).to(tl.pointer_type(tl.int64))
    p = (ints + FLOATS).to(tl.pointer_type(tl.float32))
    height, width = tl.load(ints).to(tl.float32), tl.load(ints + 1).to(tl.float32)
    out_height, out_width = tl.load(ints + 2), tl.load(ints + 3)
    y, x_first = tl.program_id(1), tl.program_id(0) * BLOCK
    if (y < out_height) & (x_first < out_width):
        x = x_first + tl.arange(0, BLOCK)
        x_last = tl.minimum(x_first + BLOCK, out_width.to(tl.int32)) - 1
        mask = x <= x_last
        start_x, scale_x, scale_y = tl.load(p + 2), tl.load(p + 3), tl.load(p + 1)
        cy = tl.load(p) + (y.to(tl.float32) + 0.5) * scale_y
        cx = start_x + (x.to(tl.float32) + 0.5) * scale_x
        rx, ry = tl.maximum(scale_x, 1.0), tl.maximum(scale_y, 1.0)
        taps_y, taps_x = tl.load(p + 6).to(tl.int32), tl.load(p + 7).to(tl.int32)
        first, last = _columns(start_x, scale_x, x_first, x_last, rx, taps_x, width)
        y0, x0 = tl.floor(cy - ry), tl.floor(cx - rx)
        r, g, b = tl.zeros_like(cx), tl.zeros_like(cx), tl.zeros_like(cx)
        weights, down = tl.zeros_like(cx), 0.0
        for begin in range(first, last + 1, SPAN):
            column = begin + tl.arange(0, SPAN)
            red, green, blue = tl.zeros([SPAN], tl.float32), tl.zeros([SPAN], tl.float32), tl.zeros([SPAN], tl.float32)
            down = 0.0
            for i in range(taps_y):
                pixel = base + _inside(y0 + i, height) * pitch + 3 * column
                weight = _triangle(y0 + i, cy, ry)
                down += weight
                red += weight * tl.load(pixel, mask=column <= last, other=0).to(tl.float32)
                green += weight * tl.load(pixel + 1, mask=column <= last, other=0).to(tl.float32)
                blue += weight * tl.load(pixel + 2, mask=column <= last, other=0).to(tl.float32)
            weights = tl.zeros_like(cx)
            for j in range(taps_x):
                weight, place = _triangle(x0 + j, cx, rx), _inside(x0 + j, width) - begin
                weights += weight
                r += weight * _picked(red, place, SPAN)
                g += weight * _picked(green, place, SPAN)
                b += weight * _picked(blue, place, SPAN)
        whole = down * weights
        _finish(row, ints, p, _rounded(r / whole), _rounded(g / whole), _rounded(b / whole), x, y, mask, OUT, RECOLOURS)
