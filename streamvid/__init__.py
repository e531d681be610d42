"""streamvid: feeds video models from WebDataset shards.

    import streamvid as sv
    loader = sv.StreamLoader("datasets/mine", batch_size=16, sampling=sv.Window(frames=16, fps=8))

DALI and PyTorch are imported with the first loader, not with this package.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamvid import dali as dali
    from streamvid.dataset.dataset import Dataset as Dataset
    from streamvid.dataset.picked import Pick as Pick
    from streamvid.errors import ClipError as ClipError
    from streamvid.errors import DatasetError as DatasetError
    from streamvid.errors import InputError as InputError
    from streamvid.errors import StreamvidError as StreamvidError
    from streamvid.errors import VideoError as VideoError
    from streamvid.inspection.difference import diff as diff
    from streamvid.inspection.duplicates import duplicates as duplicates
    from streamvid.inspection.extract import extract as extract
    from streamvid.inspection.listing import list_clips as list_clips
    from streamvid.inspection.preview.show import show as show
    from streamvid.inspection.verify import verify as verify
    from streamvid.loader.batch import Batch as Batch
    from streamvid.loader.batch import LoaderStats as LoaderStats
    from streamvid.loader.clip_dataset import ClipDataset as ClipDataset
    from streamvid.loader.clip_items import At as At
    from streamvid.loader.gpu_loader import GpuDataLoader as GpuDataLoader
    from streamvid.loader.stream_loader import StreamLoader as StreamLoader
    from streamvid.packing.index import index as index
    from streamvid.packing.options import FixedLength as FixedLength
    from streamvid.packing.options import PackOptions as PackOptions
    from streamvid.packing.options import Scenes as Scenes
    from streamvid.packing.pack import pack as pack
    from streamvid.packing.reshape import merge as merge
    from streamvid.packing.reshape import reshard as reshard
    from streamvid.packing.reshape import split as split
    from streamvid.plan.inputs import Mix as Mix
    from streamvid.plan.inputs import Subset as Subset
    from streamvid.revising.annotate import AnnotateReport as AnnotateReport
    from streamvid.revising.annotate import annotate as annotate
    from streamvid.revising.forget import ForgetReport as ForgetReport
    from streamvid.revising.forget import forget as forget
    from streamvid.revising.ledger import Seen as Seen
    from streamvid.revising.ledger import ledger as ledger
    from streamvid.revising.repair import RepairReport as RepairReport
    from streamvid.revising.repair import repair as repair
    from streamvid.sampling.base import ClipTimes as ClipTimes
    from streamvid.sampling.base import FrameSampler as FrameSampler
    from streamvid.sampling.explicit import ByClip as ByClip
    from streamvid.sampling.explicit import Frames as Frames
    from streamvid.sampling.spread import All as All
    from streamvid.sampling.spread import Keyframes as Keyframes
    from streamvid.sampling.spread import RandomFrames as RandomFrames
    from streamvid.sampling.spread import Uniform as Uniform
    from streamvid.sampling.windows import MultiRate as MultiRate
    from streamvid.sampling.windows import TiledWindows as TiledWindows
    from streamvid.sampling.windows import Window as Window
    from streamvid.transform.spec import Transform as Transform
    from streamvid.transform.spec import Views as Views
    from streamvid.video.public_slice import slice as slice
    from streamvid.video.transcode import TranscodeOptions as TranscodeOptions

__version__ = "0.1.0"

_NAMES_OF = {
    "dataset.dataset": "Dataset",
    "dataset.picked": "Pick",
    "errors": "ClipError DatasetError InputError StreamvidError VideoError",
    "inspection.difference": "diff",
    "inspection.duplicates": "duplicates",
    "inspection.extract": "extract",
    "inspection.listing": "list_clips",
    "inspection.preview.show": "show",
    "inspection.verify": "verify",
    "loader.batch": "Batch LoaderStats",
    "loader.clip_dataset": "ClipDataset",
    "loader.clip_items": "At",
    "loader.gpu_loader": "GpuDataLoader",
    "loader.stream_loader": "StreamLoader",
    "packing.index": "index",
    "packing.options": "FixedLength PackOptions Scenes",
    "packing.pack": "pack",
    "packing.reshape": "merge reshard split",
    "plan.inputs": "Mix Subset",
    "revising.annotate": "AnnotateReport annotate",
    "revising.forget": "ForgetReport forget",
    "revising.ledger": "Seen ledger",
    "revising.repair": "RepairReport repair",
    "sampling.base": "ClipTimes FrameSampler",
    "sampling.explicit": "ByClip Frames",
    "sampling.spread": "All Keyframes RandomFrames Uniform",
    "sampling.windows": "MultiRate TiledWindows Window",
    "transform.spec": "Transform Views",
    "video.public_slice": "slice",
    "video.transcode": "TranscodeOptions",
}
"""The public names of each module."""
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names.split()}

__all__ = sorted([*_MODULE_OF, "dali"])


def __getattr__(name: str) -> object:
    if name == "dali":
        return import_module("streamvid.dali")
    if name in _MODULE_OF:
        return getattr(import_module(f"streamvid.{_MODULE_OF[name]}"), name)
    raise AttributeError(f"module 'streamvid' has no attribute {name!r}", name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return __all__
