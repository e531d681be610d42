"""streamvid: feeds video models from WebDataset shards.

    import streamvid as sv
    loader = sv.StreamLoader("datasets/mine", batch_size=16, sampling=sv.Window(frames=16, fps=8))

Nothing heavy is imported before it is used: DALI and PyTorch load with the first loader.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamvid.errors import DatasetError, InputError, StreamvidError, VideoError
    from streamvid.inspection.verify import verify
    from streamvid.packing.pack import pack
    from streamvid.store.dataset import Dataset
    from streamvid.stream.loader import LoaderStats, StreamLoader
    from streamvid.stream.sampling import All, Frames, Sampling, Uniform, Window
    from streamvid.stream.transform import Transform

__version__ = "0.1.0"

_HOME = {
    "All": "stream.sampling",
    "Dataset": "store.dataset",
    "DatasetError": "errors",
    "Frames": "stream.sampling",
    "InputError": "errors",
    "LoaderStats": "stream.loader",
    "Sampling": "stream.sampling",
    "StreamLoader": "stream.loader",
    "StreamvidError": "errors",
    "Transform": "stream.transform",
    "Uniform": "stream.sampling",
    "VideoError": "errors",
    "Window": "stream.sampling",
    "pack": "packing.pack",
    "verify": "inspection.verify",
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
    "pack",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"streamvid.{_HOME[name]}"), name)
    raise AttributeError(f"module 'streamvid' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
