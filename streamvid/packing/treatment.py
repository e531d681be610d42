"""What packing makes of a video besides copying it, and what comes out. Plain values: they travel to workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from streamvid.video.stored import StoredClip


@dataclass(frozen=True)
class Treatment:
    """What is done to every video. Together with the sources it decides every byte of a dataset.

    Attributes:
        suits: "gpu": what NVDEC or DALI cannot take is converted, and only that; "any": all is copied.
    """

    suits: Literal["gpu", "any"] = "gpu"


@dataclass(frozen=True)
class Piece:
    """One clip made from a video.

    Attributes:
        clip: the clip itself.
        suffix: what its key has behind its video's key: "" for a whole video.
        meta: a JSON object: the columns of its video and its own.
    """

    clip: StoredClip
    suffix: str
    meta: str
