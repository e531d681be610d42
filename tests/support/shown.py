"""Which frames of a packed clip the pictures of a batch show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.clips import Recipe, read_frame_number


@dataclass(frozen=True)
class Packed:
    """The dataset, and the recipe of each of its rows."""

    path: Path
    recipes: list[Recipe]


def shown(packed: Packed, batch: dict[str, Any], i: int) -> tuple[int, tuple[int, ...]]:
    """The clip, and the frames in its pictures; -1 for black ones. Checks times and mask on the way."""
    row = int(batch["clip"][i])
    recipe = packed.recipes[row]
    at = [float(t) for t in recipe.shown_at()]
    frames = []
    for slot, seconds in enumerate(batch["pts"][i].tolist()):
        picture = batch["video"][i, slot].numpy()
        if seconds == -1:
            assert not batch["mask"][i, slot]
            assert not picture.any()
            frames.append(-1)
            continue
        frame = recipe.shown().index(read_frame_number(picture))
        assert abs(seconds - at[frame]) < 0.0011
        frames.append(frame)
    return row, tuple(frames)
