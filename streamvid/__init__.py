"""streamvid: feeds video models from WebDataset shards.

    import streamvid as sv
    loader = sv.StreamLoader("datasets/mine", batch_size=16, sampling=sv.Window(frames=16, fps=8))

Nothing heavy is imported before it is used: DALI and PyTorch load with the first loader.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamvid.access.choice import At
    from streamvid.access.dataset import ClipDataset
    from streamvid.access.proxy import ProxyLoader
    from streamvid.errors import DatasetError, InputError, StreamvidError, VideoError
    from streamvid.inspection.verify import verify
    from streamvid.packing.pack import pack
    from streamvid.store.dataset import Dataset
    from streamvid.stream.loader import LoaderStats, StreamLoader
    from streamvid.stream.picks import All, ByClip, Frames, Keyframes, RandomFrames, Uniform
    from streamvid.stream.sampling import ClipTimes, Sampling
    from streamvid.stream.sources import Mix, Subset
    from streamvid.stream.transform import Transform, Views
    from streamvid.stream.windows import MultiRate, Window, Windows
    from streamvid.video.slice import slice

__version__ = "0.1.0"

_HOME = {
    "All": "stream.picks",
    "At": "access.choice",
    "ByClip": "stream.picks",
    "ClipDataset": "access.dataset",
    "ClipTimes": "stream.sampling",
    "Dataset": "store.dataset",
    "DatasetError": "errors",
    "Frames": "stream.picks",
    "InputError": "errors",
    "Keyframes": "stream.picks",
    "LoaderStats": "stream.loader",
    "MultiRate": "stream.windows",
    "RandomFrames": "stream.picks",
    "Mix": "stream.sources",
    "ProxyLoader": "access.proxy",
    "Sampling": "stream.sampling",
    "StreamLoader": "stream.loader",
    "StreamvidError": "errors",
    "Subset": "stream.sources",
    "Transform": "stream.transform",
    "Uniform": "stream.picks",
    "VideoError": "errors",
    "Views": "stream.transform",
    "Window": "stream.windows",
    "Windows": "stream.windows",
    "pack": "packing.pack",
    "slice": "video.slice",
    "verify": "inspection.verify",
}

__all__ = [
    "All",
    "At",
    "ByClip",
    "ClipDataset",
    "ClipTimes",
    "Dataset",
    "DatasetError",
    "Frames",
    "InputError",
    "Keyframes",
    "LoaderStats",
    "Mix",
    "MultiRate",
    "ProxyLoader",
    "RandomFrames",
    "Sampling",
    "StreamLoader",
    "StreamvidError",
    "Subset",
    "Transform",
    "Uniform",
    "VideoError",
    "Views",
    "Window",
    "Windows",
    "pack",
    "slice",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"streamvid.{_HOME[name]}"), name)
    raise AttributeError(f"module 'streamvid' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
