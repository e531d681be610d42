"""What `StreamLoader` and `GpuDataLoader` have in common: iteration over epochs, and refused uses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from types import SimpleNamespace
from typing import Generic, NoReturn, Self

from streamvid.decode.lost_gpu import GpuWatch
from streamvid.errors import InputError
from streamvid.loader.batch import Batch
from streamvid.loader.run_position import Delivery, P, RunPosition


class BatchLoader(ABC, Generic[P]):
    """Makes batches by threads and workers of its own, and is resumed by its state. It is neither a dataset nor a
    DataLoader: what PyTorch and frameworks do with those is refused, in a sentence that says why."""

    _position: RunPosition[P]
    _watch: GpuWatch
    _batch_size: int

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next iteration begins or resumes."""
        return self._position.next.epoch_number

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that epoch."""

    @abstractmethod
    def close(self) -> None:
        """Free threads and device memory."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Batch]:
        """The batches of an epoch, or the rest of a resumed one. Nothing is done before the first batch is asked
        for."""
        return self._watch.over(self._position.follow(self._run()))

    @abstractmethod
    def _run(self) -> Generator[Delivery[Batch, P], None, None]:
        """The batches from the position on, to the end of its epoch."""

    def __getitem__(self, index: object) -> NoReturn:
        """Refused: called if this loader is given to a DataLoader as a dataset."""
        raise TypeError(
            f"a {type(self).__name__} yields batches itself: iterate over it without a DataLoader; for a DataLoader "
            "there is ClipDataset"
        )

    def __reduce__(self) -> NoReturn:
        raise InputError(
            f"a {type(self).__name__} cannot be pickled or copied, as for mp.spawn: make it in the process that "
            "iterates over it"
        )

    @property
    def sampler(self) -> NoReturn:
        """Refused: accelerate's skip_first_batches, which Trainer calls to resume, would have it skip, and Ray's
        prepare_data_loader would replace it. An AttributeError, by which all others see that there is none."""
        raise AttributeError(
            f"a {type(self).__name__} has no sampler: iterate over it as it is, without Ray's prepare_data_loader; "
            "resume by its state_dict and load_state_dict instead of skip_first_batches, in Trainer with "
            "ignore_data_skip=True"
        )

    @property
    def batch_sampler(self) -> SimpleNamespace:
        """For Lightning: it loads no state that was saved at an epoch's end, but tells the sampler of its
        `batch_sampler` the number of each epoch, with which a loader then begins that has no state. For DeepSpeed it
        reads `batch_size`."""

        def set_epoch(epoch: int) -> None:
            if epoch > self.epoch and self._position.fresh:
                self.set_epoch(epoch)

        return SimpleNamespace(sampler=SimpleNamespace(set_epoch=set_epoch), batch_size=self._batch_size)
