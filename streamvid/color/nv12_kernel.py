"""The Triton kernel behind `streamvid.color.nv12`. Importing this module needs Triton."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _fma(factor, constant: tl.constexpr, summand):
    """factor * constant + summand with one rounding, as DALI's kernel is compiled: left to the compiler, a pixel in
    20,000 comes out one level off."""
    return libdevice.fma_rn(factor, tl.full(factor.shape, constant, tl.float32), summand)


@triton.jit
def _normal(level, black: tl.constexpr):
    """0 to 255 → 0 to 1, less `black`."""
    return _fma(level, 0.00392156862745098, tl.full(level.shape, -black, tl.float32))


@triton.jit
def _chroma(base, row0, row1, near0, near1, pitch, plane, mask):
    """One chroma plane at a pixel, -0.5 to 0.5: 9 parts of the sample that the pixel lies in, 3 of each of two
    neighbours, 1 of the diagonal one."""
    a = tl.load(base + row0 * pitch + 2 * near0 + plane, mask=mask, other=0).to(tl.int32)
    b = tl.load(base + row0 * pitch + 2 * near1 + plane, mask=mask, other=0).to(tl.int32)
    c = tl.load(base + row1 * pitch + 2 * near0 + plane, mask=mask, other=0).to(tl.int32)
    d = tl.load(base + row1 * pitch + 2 * near1 + plane, mask=mask, other=0).to(tl.int32)
    return _normal((9 * a + 3 * (b + c) + d).to(tl.float32) * 0.0625, 0.5)


@triton.jit
def _byte(value):
    return tl.minimum(tl.maximum(libdevice.rint(value * 255.0), 0.0), 255.0).to(tl.uint8)


@triton.jit
def nv12_to_rgb(nv12, out, places, height, width, FULL: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """uint8 NV12 [frames, 3 * height / 2, width] → uint8 RGB [pictures, height, width, 3], each at its place; a program
    makes part of a row."""
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.program_id(1)
    frame = tl.program_id(2).to(tl.int64)
    mask = x < width
    luma = nv12 + frame * (height + height // 2) * width
    base = luma + height * width
    # The sample that a pixel lies in, and the next one on the side that it lies nearer to, clamped at the border.
    row0 = y // 2
    row1 = tl.minimum(tl.maximum(row0 + 2 * (y % 2) - 1, 0), height // 2 - 1)
    near0 = x // 2
    near1 = tl.minimum(tl.maximum(near0 + 2 * (x % 2) - 1, 0), width // 2 - 1)
    level = tl.load(luma + y * width + x, mask=mask, other=0).to(tl.float32)
    blue = _chroma(base, row0, row1, near0, near1, width, 0, mask)
    red = _chroma(base, row0, row1, near0, near1, width, 1, mask)
    if FULL:
        bright = level * 0.00392156862745098
        r = _fma(red, 1.402, bright)
        g = _fma(red, -0.71413629, _fma(blue, -0.34413629, bright))
        b = _fma(blue, 1.772, bright)
    else:
        bright = _normal(level, 0.0625) * 1.16438356
        r = _fma(red, 1.59602679, bright)
        g = _fma(red, -0.81296765, _fma(blue, -0.39176229, bright))
        b = _fma(blue, 2.01723214, bright)
    picture = tl.load(places + frame)
    place = out + ((picture * height + y) * width + x) * 3
    tl.store(place, _byte(r), mask=mask)
    tl.store(place + 1, _byte(g), mask=mask)
    tl.store(place + 2, _byte(b), mask=mask)


@triton.jit
def _sample(wide, mask, SHIFT: tl.constexpr):  # noqa: N803
    """A sample of 10 bits."""
    return (tl.load(wide, mask=mask, other=0).to(tl.int32) & 0xFFFF) >> SHIFT


@triton.jit
def _score(sample, near):
    """Larger: rounded up sooner. `near` is 0 to 3: 3 is nearest to the middle of the four by four samples."""
    remainder = sample & 3
    return 4 * remainder + tl.where(remainder == 3, 3 - near, near)


@triton.jit
def _narrowed(sample, mine, a, b, c, up):
    """To 8 bits, rounded up if fewer than `up` of the other three come before it."""
    before = (a > mine).to(tl.int32) + (b > mine).to(tl.int32) + (c > mine).to(tl.int32)
    return tl.minimum((sample >> 2) + (before < up).to(tl.int32), 255).to(tl.uint8)


@triton.jit
def narrow(wide, out, height, width, SHIFT: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """10-bit samples [frames, 3 * height / 2, width] → uint8 of the same shape; a program makes part of two rows."""
    row = tl.program_id(1)
    # Of chroma, samples side by side belong to two planes.
    in_chroma = (row >= height // 2).to(tl.int32)
    step = 1 + in_chroma
    quad = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = quad < width // 2
    # Of the quad's own plane.
    column = quad // step
    frame = tl.program_id(2).to(tl.int64) * (height + height // 2) * width
    place = frame + 2 * row * width + 2 * step * column + quad % step
    a = _sample(wide + place, mask, SHIFT)
    b = _sample(wide + place + step, mask, SHIFT)
    c = _sample(wide + place + width, mask, SHIFT)
    d = _sample(wide + place + width + step, mask, SHIFT)
    up = ((a & 3) + (b & 3) + (c & 3) + (d & 3) + 1) // 4
    # Rows of luma are a multiple of 4, so those of chroma begin with an even quad, too.
    top = 2 * (row % 2)
    left = column % 2
    e = _score(a, top + left)
    f = _score(b, top + 1 - left)
    g = _score(c, 2 - top + left)
    h = _score(d, 2 - top + 1 - left)
    tl.store(out + place, _narrowed(a, e, f, g, h, up), mask=mask)
    tl.store(out + place + step, _narrowed(b, f, e, g, h, up), mask=mask)
    tl.store(out + place + width, _narrowed(c, g, e, f, h, up), mask=mask)
    tl.store(out + place + width + step, _narrowed(d, h, e, f, g, up), mask=mask)
