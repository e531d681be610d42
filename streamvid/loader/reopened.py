"""What travels to workers: an object that opens its dataset again where it arrives, and numbers that forks share."""

from __future__ import annotations

import mmap
import multiprocessing
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from streamvid.dataset import tables
from streamvid.dataset.dataset import Dataset
from streamvid.errors import DatasetError
from streamvid.loader.torch_options import end_with_parent


class Reopened:
    """Base of `ClipDataset`. A pickle has the dataset's path instead of its rows. Those of a large dataset are mapped
    from the user's cache folder, and shared by all processes of the machine.

    The dataset is opened when it is used first, not while the pickle is loaded: of an error there, in a worker that is
    being spawned, PyTorch says no more than that the worker exited unexpectedly.
    """

    _elsewhere: tuple[str, dict[str, Any], str]
    _epoch: Any  # a tensor; PyTorch has no types for some of its methods

    @cached_property
    def dataset(self) -> Dataset:
        """The packed dataset.

        Raises:
            DatasetError: it cannot be opened in this process, or was packed again since it was pickled.
        """
        path, how, shards = self._elsewhere
        dataset = Dataset.open(path, **how)
        if tables.digest(dataset.shards) != shards:  # the rows that samplers name would be other clips
            raise DatasetError(f"{dataset!r} was packed again since the ClipDataset was made: make a new one")
        return dataset

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        if (dataset := state.pop("dataset", None)) is not None:
            how = {"retry_for": dataset.reader.retry, "roots": dataset.roots, "revision": dataset.manifest.revision}
            state["_elsewhere"] = dataset.path, how, tables.digest(dataset.shards)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not self._epoch.is_shared():  # it was copied, not sent to a worker
            self._epoch = seen_by_forks(self._epoch.tolist())
        if hasattr(multiprocessing.current_process(), "_inheriting"):  # multiprocessing spawns this process
            end_with_parent()


def seen_by_forks(values: Sequence[int]) -> torch.Tensor:
    """int64 [values], whose changes persistent workers see: forked ones by an anonymous mapping, which needs no
    /dev/shm; spawned ones by shared memory, to which PyTorch moves the tensors that it sends to them."""
    tensor = torch.frombuffer(mmap.mmap(-1, 8 * len(values)), dtype=torch.int64)
    tensor[:] = torch.tensor(values, device="cpu")
    return tensor
