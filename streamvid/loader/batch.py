"""The batches that loaders give to the training loop, and their statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict, cast

import numpy as np

from streamvid.arrays import Int64
from streamvid.dataset.clip_source import ClipSource
from streamvid.transform.render import RenderedBatch

if TYPE_CHECKING:
    import torch


class Batch(TypedDict):
    """A batch: a dict of tensors on the loader's device.

    Metadata columns stand in it by their names, numbers as tensors and text as lists; with several views, each stands
    by its name in place of `video`. `typing.cast(dict[str, Any], batch)` gives a type checker access to those.

    Attributes:
        video: the batch, then the transform's layout and dtype.
        mask: bool [batch, T], True for real frames, False for padding.
        pts: float64 [batch, T], seconds from the clip's first frame; -1 for a black frame.
        label: int64 [batch], class number, -100 for none, which PyTorch's losses leave out (`ignore_index`).
        clip: int64 [batch], row numbers of the dataset.
        valid: bool [batch], False for clips that only fill the batch.
        epoch: int64 [batch], in which pass over its dataset each clip comes, from 0.
        key: the clips' keys.
        dataset: int64 [batch], which dataset of a `Mix` each clip is from.
    """

    video: NotRequired[torch.Tensor]
    mask: torch.Tensor
    pts: torch.Tensor
    label: torch.Tensor
    clip: torch.Tensor
    valid: torch.Tensor
    epoch: torch.Tensor
    key: list[str]
    dataset: NotRequired[torch.Tensor]


@dataclass(frozen=True)
class LoaderStats:
    """What this rank has done so far, over all epochs.

    Attributes:
        batches, clips: handed out; clips counts valid ones alone.
        frames: real frames of those clips, without padding.
        bytes_read: from the shards.
        wait_seconds: time that the training loop spent waiting for batches.
        fetch: what is read: "local" files, or of a remote dataset "ranges" or whole "shards".
        requests: for byte ranges of a remote dataset, with those for frame indexes.
    """

    batches: int = 0
    clips: int = 0
    frames: int = 0
    bytes_read: int = 0
    wait_seconds: float = 0.0
    fetch: Literal["local", "ranges", "shards"] = "local"
    requests: int = 0

    def plus(self, one: RenderedBatch | None, waited: float) -> LoaderStats:
        """After one more batch, or None where there was none left, for which the loop waited that many seconds."""
        if one is None:
            return replace(self, wait_seconds=self.wait_seconds + waited)
        valid = one.encoded.valid  # not the tensors: reading those would wait for the GPU
        return LoaderStats(
            batches=self.batches + 1,
            clips=self.clips + int(valid.sum()),
            frames=self.frames + int(one.encoded.mask[valid].sum()),
            bytes_read=self.bytes_read + one.encoded.bytes_read,
            wait_seconds=self.wait_seconds + waited,
        )


def make_batch(one: RenderedBatch, dataset: ClipSource, columns: Sequence[str], parts: Int64 | None = None) -> Batch:
    """The tensors of a batch, with keys and metadata.

    Args:
        one: views and `BATCH_COLUMNS` as tensors.
        dataset: where its clips come from.
        columns: names of metadata.
        parts: int64 [batch], which dataset of a `Mix` each clip is from.
    """
    import torch

    batch: dict[str, object] = dict(one.tensors)
    rows, device = one.encoded.clips, one.tensors["clip"].device
    batch["key"] = [dataset.key(row) for row in rows.tolist()]
    if parts is not None:
        batch["dataset"] = torch.from_numpy(parts).to(device)
    for name in columns:
        values = dataset.columns.batch(name, rows)
        batch[name] = torch.from_numpy(values).to(device) if isinstance(values, np.ndarray) else values
    return cast(Batch, batch)
