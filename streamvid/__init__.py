"""streamvid: feeds video models from WebDataset shards.

    import streamvid as sv
    loader = sv.StreamLoader("datasets/mine", batch_size=16, sampling=sv.Window(frames=16, fps=8))

Nothing heavy is imported before it is used: DALI and PyTorch load with the first loader.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamvid.dataset import Dataset
    from streamvid.errors import DatasetError, InputError, StreamvidError, VideoError
    from streamvid.loader import LoaderStats, StreamLoader
    from streamvid.sampling import All, Frames, Sampling, Uniform, Window
    from streamvid.transform import Transform

__version__ = "0.1.0"

_HOME = {
    "All": "sampling",
    "Dataset": "dataset",
    "DatasetError": "errors",
    "Frames": "sampling",
    "InputError": "errors",
    "LoaderStats": "loader",
    "Sampling": "sampling",
    "StreamLoader": "loader",
    "StreamvidError": "errors",
    "Transform": "transform",
    "Uniform": "sampling",
    "VideoError": "errors",
    "Window": "sampling",
}

__all__ = [
    "All",
    "Dataset",
    "DatasetError",
    "Frames",
    "InputError",
    "LoaderStats",
    "Sampling",
    "StreamLoader",
    "StreamvidError",
    "Transform",
    "Uniform",
    "VideoError",
    "Window",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"streamvid.{_HOME[name]}"), name)
    raise AttributeError(f"module 'streamvid' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
