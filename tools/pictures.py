"""The pictures of synthetic clips: seeded moving content, and a frame number that survives lossy coding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]
Style = Literal["shapes", "texture"]

NUMBER_BITS: Final = 12
MIN_BLOCK: Final = 8
MIN_SIDE: Final = 64


@dataclass(frozen=True)
class _Blocks:
    """Where the bits of the frame number lie: squares in the top left corner, most significant bit first."""

    columns: int
    side: int

    @classmethod
    def of(cls, width: int, height: int) -> _Blocks:
        if min(width, height) < MIN_SIDE:
            raise ValueError(f"a frame of {width}x{height} has no room for a frame number, make it {MIN_SIDE} or more")
        # One row of twelve where that fits, else two of six: in 64 pixels, six blocks of 10.
        columns = NUMBER_BITS if width >= NUMBER_BITS * MIN_BLOCK else NUMBER_BITS // 2
        return cls(columns, min(width // columns, max(MIN_BLOCK, height // 6)))

    def corner(self, bit: int) -> tuple[int, int]:
        """(y, x) of a block."""
        return bit // self.columns * self.side, bit % self.columns * self.side


def draw_frame_number(rgb: Image, number: int) -> None:
    """Draw `number` (0 to 4095) into an image, as black and white blocks."""
    if not 0 <= number < 1 << NUMBER_BITS:
        raise ValueError(f"frame number {number} does not fit into {NUMBER_BITS} bits")
    blocks = _Blocks.of(rgb.shape[1], rgb.shape[0])
    for bit in range(NUMBER_BITS):
        y, x = blocks.corner(bit)
        rgb[y : y + blocks.side, x : x + blocks.side] = 255 * (number >> (NUMBER_BITS - 1 - bit) & 1)


def read_frame_number(rgb: Image, drawn_at: tuple[int, int] | None = None) -> int:
    """Read back the number that `draw_frame_number` drew.

    Args:
        rgb: uint8 [height, width, 3], upright as it was coded: not flipped, cropped or rotated.
        drawn_at: (width, height) of the clip, if the image was resized since.

    Raises ValueError if a block is neither black nor white: then this is no such picture, or a broken one.
    """
    height, width = rgb.shape[:2]
    drawn_width, drawn_height = drawn_at or (width, height)
    blocks = _Blocks.of(drawn_width, drawn_height)
    scale_x, scale_y = width / drawn_width, height / drawn_height
    number = 0
    for bit in range(NUMBER_BITS):
        y, x = blocks.corner(bit)
        # The middle half alone: edges ring and bleed.
        top, left = (y + blocks.side / 4) * scale_y, (x + blocks.side / 4) * scale_x
        rows = slice(round(top), max(round(top) + 1, round(top + blocks.side / 2 * scale_y)))
        columns = slice(round(left), max(round(left) + 1, round(left + blocks.side / 2 * scale_x)))
        level = float(rgb[rows, columns].mean())
        if 104 < level < 152:
            raise ValueError(f"no frame number: block {bit} is neither black nor white (level {level:.0f})")
        number = number << 1 | (level >= 152)
    return number


def painter(style: Style, seed: int, width: int, height: int) -> Callable[[int], Image]:
    """A function from the frame's position in its scene to a fresh picture, uint8 [height, width, 3]."""
    rng = np.random.default_rng(seed)
    return _texture(rng, width, height) if style == "texture" else _shapes(rng, width, height)


def _shapes(rng: np.random.Generator, width: int, height: int) -> Callable[[int], Image]:
    """Discs and boxes that fly over a gradient, and bounce."""
    ends = rng.integers(40, 216, (2, 3)).astype(np.float32)
    slope = np.linspace(0, 1, width, dtype=np.float32)[None, :] / 2 + np.linspace(0, 0.5, height)[:, None]
    ground: Image = (ends[0] + (ends[1] - ends[0]) * slope[..., None].astype(np.float32)).astype(np.uint8)
    count = 6
    radius = rng.integers(max(3, min(width, height) // 16), max(5, min(width, height) // 6), count)
    start = rng.random((count, 2))
    # At least two pixels a frame on either axis, so that neighbours differ after coarse quantisation too.
    speed = (2 + rng.random((count, 2)) * max(width, height) / 50) * rng.choice([-1, 1], (count, 2))
    colour = rng.integers(0, 256, (count, 3))
    ys, xs = np.arange(height)[:, None], np.arange(width)[None, :]

    def paint(position: int) -> Image:
        picture = ground.copy()
        for i in range(count):
            # A triangle wave over the frame's sides: the shape bounces.
            y, x = (
                abs((start[i, axis] * side + speed[i, axis] * position) % (2 * side) - side)
                for axis, side in enumerate((height, width))
            )
            r = int(radius[i])
            top, left = max(0, int(y) - r), max(0, int(x) - r)
            bottom, right = int(y) + r, int(x) + r
            if i % 2:
                picture[top:bottom, left:right] = colour[i]
            else:
                inside = (ys[top:bottom] - int(y)) ** 2 + (xs[:, left:right] - int(x)) ** 2 < r * r
                picture[top:bottom, left:right][inside] = colour[i]
        return picture

    return paint


def _texture(rng: np.random.Generator, width: int, height: int) -> Callable[[int], Image]:
    """Fine texture that drifts: hard to code, so that packets are large."""
    tile = smooth_noise(rng, width, height, cells=24)
    colours = rng.integers(0, 256, (2, 3)).astype(np.float32)
    picture = (colours[0] + (colours[1] - colours[0]) * tile[..., None]).astype(np.uint8)
    step_y, step_x = (int(v) for v in rng.choice([-3, -2, 2, 3], 2))

    def paint(position: int) -> Image:
        rolled: Image = np.roll(picture, (step_y * position, step_x * position), axis=(0, 1))
        return rolled

    return paint


def smooth_noise(rng: np.random.Generator, width: int, height: int, cells: int) -> npt.NDArray[np.float32]:
    """float32 [height, width] in 0 … 1: blobs about 1/`cells` of the shorter side, without a seam where sides meet."""
    unit = min(width, height) / cells
    rows, columns = max(2, round(height / unit)), max(2, round(width / unit))
    grid = rng.random((rows, columns), dtype=np.float32)
    y = np.arange(height, dtype=np.float32) * (rows / height)
    x = np.arange(width, dtype=np.float32) * (columns / width)
    y0, x0 = y.astype(np.int64), x.astype(np.int64)
    fy, fx = (y - y0)[:, None], (x - x0)[None, :]
    y1, x1 = (y0 + 1) % rows, (x0 + 1) % columns
    top = grid[y0][:, x0] * (1 - fx) + grid[y0][:, x1] * fx
    bottom = grid[y1][:, x0] * (1 - fx) + grid[y1][:, x1] * fx
    noise: npt.NDArray[np.float32] = (top * (1 - fy) + bottom * fy).astype(np.float32)
    return noise
