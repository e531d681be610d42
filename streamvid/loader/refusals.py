"""What PyTorch and frameworks do with datasets and DataLoaders, and loaders refuse, in a sentence that says why."""

from __future__ import annotations

from typing import NoReturn

from streamvid.errors import InputError


class Refusals:
    """Base of `StreamLoader` and `GpuDataLoader`, which are neither: they make batches by threads and workers of their
    own, and are resumed by their state."""

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
        """Refused: accelerate's skip_first_batches, which Trainer calls to resume, would have it skip. An
        AttributeError, by which all others see that there is none."""
        raise AttributeError(
            f"a {type(self).__name__} has no sampler that could skip batches: resume by its state_dict and "
            "load_state_dict instead of skip_first_batches; in Trainer, with ignore_data_skip=True"
        )
