"""NV12 surfaces of NVDEC → RGB by Triton kernels, the same pixels as DALI's GPU decoder, bit for bit. Importing this
module needs Triton; `streamvid.color.surfaces` launches them.

DALI's conversion, fitted to the output of DALI 2.4: chroma is sited at the centre of its four luma samples and
interpolated bilinearly, clamped at the borders. Then, in float32, the matrix of BT.601 on levels from 0 to 1 with
black at 0.0625 and neutral chroma at 0.5, or for full range the matrix of JPEG. (16 / 255 and 128 / 255 would be exact;
DALI's values are 0.07 of a level off in luma and half a level in chroma.)

For 10-bit streams DALI has NVDEC deliver 8 bits, which NVDEC dithers, fitted to the output of an H200: of each 2×2
samples of a plane, the remainders of the division by 4 are summed, and (sum + 1) // 4 of the four samples are rounded
up, those with the largest remainders first. Ties go to the sample nearest to the centre of its 4×4 block, but for
remainders of 3 to the one farthest from it.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def _fma(factor, constant: tl.constexpr, summand):
    """factor * constant + summand with one rounding, as in DALI's compiled kernel. Left to the compiler, one pixel in
    20,000 is one level off."""
    return libdevice.fma_rn(factor, tl.full(factor.shape, constant, tl.float32), summand)


@triton.jit
def _normal(level, black: tl.constexpr):
    """Levels 0 to 255 → 0 to 1, minus `black`."""
    return _fma(level, 0.00392156862745098, tl.full(level.shape, -black, tl.float32))


@triton.jit
def _chroma(base, row0, row1, near0, near1, pitch, plane, mask):
    """U (`plane` 0) or V (1) at each pixel, -0.5 to 0.5, bilinear: weights of 9/16 for the sample that the pixel lies
    in, 3/16 for its two nearest neighbours, 1/16 for the diagonal one."""
    a = tl.load(base + row0 * pitch + 2 * near0 + plane, mask=mask, other=0).to(tl.int32)
    b = tl.load(base + row0 * pitch + 2 * near1 + plane, mask=mask, other=0).to(tl.int32)
    c = tl.load(base + row1 * pitch + 2 * near0 + plane, mask=mask, other=0).to(tl.int32)
    d = tl.load(base + row1 * pitch + 2 * near1 + plane, mask=mask, other=0).to(tl.int32)
    return _normal((9 * a + 3 * (b + c) + d).to(tl.float32) * 0.0625, 0.5)


@triton.jit
def _byte(value):
    return tl.minimum(tl.maximum(libdevice.rint(value * 255.0), 0.0), 255.0).to(tl.uint8)


@triton.jit
def nv12_to_rgb(
    table, scratch, size, ROW: tl.constexpr, FULL: tl.constexpr, DITHERED: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """uint8 NV12 → uint8 RGB [height, width, 3], for each row of `streamvid.color.surfaces.ROW` numbers; the NV12 are
    those of `scratch`, `size` bytes each, if they are DITHERED. One program writes BLOCK pixels of a line."""
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.program_id(1)
    row = table + tl.program_id(2) * ROW
    ints = tl.load(row + 4).to(tl.pointer_type(tl.int64))
    height, full_width = tl.load(ints).to(tl.int32), tl.load(ints + 1).to(tl.int32)
    if DITHERED:
        width = full_width
        luma = scratch + tl.program_id(2).to(tl.int64) * size
        base = luma + height * width
    else:
        width = tl.load(row + 1).to(tl.int32)
        luma = tl.load(row).to(tl.pointer_type(tl.uint8))
        base = luma + tl.load(row + 2)
    mask = (x < full_width) & (y < height)
    # The chroma sample that a pixel lies in, and its neighbour on the nearer side, clamped at the border.
    row0 = y // 2
    row1 = tl.minimum(tl.maximum(row0 + 2 * (y % 2) - 1, 0), height // 2 - 1)
    near0 = x // 2
    near1 = tl.minimum(tl.maximum(near0 + 2 * (x % 2) - 1, 0), full_width // 2 - 1)
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
    pixel = tl.load(row + 3).to(tl.pointer_type(tl.uint8)) + (y * full_width + x) * 3
    tl.store(pixel, _byte(r), mask=mask)
    tl.store(pixel + 1, _byte(g), mask=mask)
    tl.store(pixel + 2, _byte(b), mask=mask)


@triton.jit
def _sample(address, mask, SHIFT: tl.constexpr):  # noqa: N803
    """A 10-bit sample; int16 is read as unsigned."""
    return (tl.load(address, mask=mask, other=0).to(tl.int32) & 0xFFFF) >> SHIFT


@triton.jit
def _score(sample, near):
    """Priority for being rounded up, higher first. `near`, 0 to 3: 3 is nearest to the centre of the 4×4 block."""
    remainder = sample & 3
    return 4 * remainder + tl.where(remainder == 3, 3 - near, near)


@triton.jit
def _dithered(sample, score, a, b, c, up):
    """8 bits of a sample, rounded up if fewer than `up` of the other three of its 2×2 have a higher score."""
    before = (a > score).to(tl.int32) + (b > score).to(tl.int32) + (c > score).to(tl.int32)
    return tl.minimum((sample >> 2) + (before < up).to(tl.int32), 255).to(tl.uint8)


@triton.jit
def to_8_bit(table, scratch, size, ROW: tl.constexpr, SHIFT: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """P016 surfaces → uint8 NV12 without gaps in `scratch`, `size` bytes each. One program writes 2 * BLOCK samples of
    each of two lines."""
    pair = tl.program_id(1)
    frame = table + tl.program_id(2) * ROW
    ints = tl.load(frame + 4).to(tl.pointer_type(tl.int64))
    height, width = tl.load(ints).to(tl.int32), tl.load(ints + 1).to(tl.int32)
    pitch = tl.load(frame + 1).to(tl.int32)
    # Chroma interleaves two planes: the next sample of a plane is two columns on.
    in_chroma = (pair >= height // 2).to(tl.int32)
    step = 1 + in_chroma
    samples = (tl.load(frame) + in_chroma * tl.load(frame + 2)).to(tl.pointer_type(tl.int16))
    samples += (2 * pair - in_chroma * height) * pitch
    out = scratch + tl.program_id(2).to(tl.int64) * size + 2 * pair * width
    quad = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (quad < width // 2) & (pair < height * 3 // 4)
    # Counted within the plane.
    column = quad // step
    at = 2 * step * column + quad % step
    a = _sample(samples + at, mask, SHIFT)
    b = _sample(samples + at + step, mask, SHIFT)
    c = _sample(samples + at + pitch, mask, SHIFT)
    d = _sample(samples + at + pitch + step, mask, SHIFT)
    up = ((a & 3) + (b & 3) + (c & 3) + (d & 3) + 1) // 4
    # Luma has a multiple of 4 rows, so chroma begins with an even pair of rows, too.
    top = 2 * (pair % 2)
    left = column % 2
    e = _score(a, top + left)
    f = _score(b, top + 1 - left)
    g = _score(c, 2 - top + left)
    h = _score(d, 2 - top + 1 - left)
    tl.store(out + at, _dithered(a, e, f, g, h, up), mask=mask)
    tl.store(out + at + step, _dithered(b, f, e, g, h, up), mask=mask)
    tl.store(out + at + width, _dithered(c, g, e, f, h, up), mask=mask)
    tl.store(out + at + width + step, _dithered(d, h, e, f, g, up), mask=mask)
