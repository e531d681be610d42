"""The batches that loaders give to the training loop, and their statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict, cast

import numpy as np

from streamvid.arrays import Int64
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.members import Values
from streamvid.dataset.picked import Pick
from streamvid.fetch.encoded_batch import EncodedBatch, labels_of
from streamvid.loader.quarantine import BadClip
from streamvid.transform.render import RenderedBatch

if TYPE_CHECKING:
    import torch


class Batch(TypedDict):
    """A batch: a dict of tensors on the loader's device.

    Metadata columns are items by their names, numbers as tensors and text as lists; with several views, each is an item
    by its name instead of `video`. `typing.cast(dict[str, Any], batch)` gives a type checker access to those.

    Attributes:
        video: the frames, [batch, …] with the transform's layout and dtype; uint8 [batch, T, H, W, C] without a
            transform.
        mask: bool [batch, T], True for real frames, False for padding.
        pts: float64 [batch, T], seconds from the clip's first frame; -1 for a black frame.
        label: int64 [batch], class number; -100 for no label, which PyTorch's losses ignore (`ignore_index`).
        clip: int64 [batch], row numbers of the dataset.
        valid: bool [batch], False for clips that only fill the batch, and for repeats in the place of absent clips.
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
    """Counts and times of this rank, over all epochs so far.

    Attributes:
        batches, clips: number of batches given to the loop, and of valid clips in them.
        frames: real frames of those clips, without padding.
        bytes_read: from the shards.
        wait_seconds: time that the training loop spent waiting for batches.
        fetch: how shards are read: "local" files, or of a remote dataset byte "ranges" or whole "shards".
        requests, bytes_fetched: requests to a remote dataset's storage and bytes asked for since the loader was made,
            including frame indexes, small gaps between ranges, and repeated requests.
        bad_clips: number of bad clips that this rank found.
        bad: the first thousand of these clips.
    """

    batches: int = 0
    clips: int = 0
    frames: int = 0
    bytes_read: int = 0
    wait_seconds: float = 0.0
    fetch: Literal["local", "ranges", "shards"] = "local"
    requests: int = 0
    bytes_fetched: int = 0
    bad_clips: int = 0
    bad: tuple[BadClip, ...] = ()

    def plus(self, rendered: RenderedBatch | None, waited: float) -> LoaderStats:
        """These statistics after one more batch (None at the end of the epoch), for which the loop waited `waited`
        seconds."""
        if rendered is None:
            return replace(self, wait_seconds=self.wait_seconds + waited)
        valid = rendered.encoded.valid  # not the tensors: reading those would wait for the GPU
        return replace(
            self,
            batches=self.batches + 1,
            clips=self.clips + int(valid.sum()),
            frames=self.frames + int(rendered.encoded.mask[valid].sum()),
            bytes_read=self.bytes_read + rendered.encoded.bytes_read,
            wait_seconds=self.wait_seconds + waited,
        )


def make_batch(
    rendered: RenderedBatch,
    dataset: ClipSource,
    columns: Sequence[str | Pick],
    part_of: Callable[[Int64], Int64] | None = None,
    *,
    masked: bool = False,
) -> Batch:
    """The tensors of a batch, with keys and metadata.

    Args:
        rendered: the batch, with views and `BATCH_COLUMNS` as tensors.
        part_of: of a `Mix`, which of its datasets each row is from.
        masked: show absent clips under their own key and row, with frames of zeros, instead of the repeats.
    """
    import torch

    batch: dict[str, object] = dict(rendered.tensors)
    rows, device = rendered.encoded.clips, rendered.tensors["clip"].device
    if masked and (rendered.encoded.absent >= 0).any():
        rows = mask_absent(rendered.tensors, rendered.encoded.absent, dataset)
    batch["key"] = [dataset.key(row) for row in rows.tolist()]
    if part_of is not None:
        batch["dataset"] = torch.from_numpy(part_of(rows)).to(device)
    for name, values in column_values(dataset, columns, rows, rendered.encoded):
        if isinstance(values, np.ndarray):
            batch[name] = torch.from_numpy(values).to(device)
        else:
            batch[name] = [
                torch.from_numpy(value).to(device) if isinstance(value, np.ndarray) else value for value in values
            ]
    return cast(Batch, batch)


def column_values(
    dataset: ClipSource, columns: Sequence[str | Pick], rows: Int64, encoded: EncodedBatch
) -> Iterator[tuple[str, Any]]:
    """The metadata of a batch's clips, by name.

    Args:
        rows: int64 [batch], the clips' rows; of masked absent clips their own, not those of the repeats.
        encoded: the batch. Its last random numbers are those of the `Pick`s, in their order.
    """
    picks = [column for column in columns if isinstance(column, Pick)]
    for column in columns:
        if isinstance(column, Pick):
            yield (
                column.column,
                column.values(dataset.columns, rows, encoded.random[:, picks.index(column) - len(picks)]),
            )
        elif (values := encoded.members.get(column)) is not None:
            same = rows is encoded.clips or np.array_equal(rows, encoded.clips)
            yield column, values if same else without_absent(values, encoded.absent)
        else:
            yield column, dataset.columns.batch(column, rows)


def without_absent(values: Values, absent: Int64) -> Values:
    """The values without those of repeats, which stand in for absent clips."""
    if isinstance(values, np.ndarray):
        shown = (absent < 0).reshape(-1, *(1 for _ in values.shape[1:]))
        return np.where(shown, values, np.zeros((), values.dtype))
    return [None if other >= 0 else value for value, other in zip(values, absent.tolist(), strict=True)]


def mask_absent(tensors: Mapping[str, torch.Tensor], absent: Int64, dataset: ClipSource) -> Int64:
    """Replace repeats by the absent clips that they stand for, without frames. Changes the tensors.

    Args:
        tensors: views and `BATCH_COLUMNS` of a batch.
        absent: int64 [batch], rows of absent clips, -1 for none.

    Returns:
        int64 [batch], the rows of all clips.
    """
    import torch

    places = np.flatnonzero(absent >= 0)
    here = torch.from_numpy(places).to(tensors["clip"].device)
    own = {"clip": absent[places], "label": labels_of(dataset, absent[places])}
    for name, tensor in tensors.items():
        if name in own:
            tensor[here] = torch.from_numpy(own[name]).to(tensor.device)
        elif name not in ("valid", "epoch"):
            tensor[here] = -1 if name == "pts" else 0
    return np.asarray(tensors["clip"].cpu().numpy(), dtype=np.int64)
