"""PyTorch's DataLoader in a `GpuDataLoader`: its options, checked where they are given, as PyTorch would fail in the
first epoch or take any text for True; and the start of its workers."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.context import ForkServerProcess
from typing import Any, Final

from torch.utils.data import get_worker_info

from streamvid.checks import boolean, check, integer, is_real
from streamvid.errors import InputError, StreamvidError
from streamvid.forks import in_children
from streamvid.host import limit_met

_PYTORCH_S: Final = 10.0
"""Seconds in which PyTorch's workers notice the end of the main process; they look every 5."""


def check_order(sampler: Any, batch_sampler: Any, *, shuffle: bool, drop_last: bool) -> None:
    """Raises InputError if more than one option gives the order, or if a sampler is none."""
    boolean(shuffle, "shuffle")
    boolean(drop_last, "drop_last")
    for name, given, kind in (("sampler", sampler, "items"), ("batch_sampler", batch_sampler, "lists of items")):
        # PyTorch's older samplers have no __iter__ of their own, but all can be iterated over.
        single = isinstance(given, str | bytes | type) or getattr(given, "ndim", 1) == 0
        valid = given is None or (isinstance(given, Iterable) and not single)
        check(valid, given, name, f"a sampler, something that yields {kind}")
    if sampler is not None and shuffle:
        raise InputError("a sampler decides the order: leave out shuffle")
    if batch_sampler is not None and (sampler is not None or shuffle or drop_last):
        raise InputError("a batch_sampler decides the order: leave out sampler, shuffle and drop_last")


def check_workers(
    num_workers: int,
    prefetch_factor: int | None,
    persistent_workers: bool,
    timeout: float,
    worker_init_fn: object,
    generator: object,
) -> None:
    """Raises InputError if one of the options of DataLoader's workers is of another type or out of range."""
    integer(num_workers, "num_workers", least=0)
    boolean(persistent_workers, "persistent_workers")
    if prefetch_factor is not None:
        integer(prefetch_factor, "prefetch_factor")
    check(is_real(timeout) and timeout >= 0, timeout, "timeout", "a number of seconds, 0 for none")
    if timeout and not num_workers:
        raise InputError("timeout is for batches of worker processes: give num_workers, too, or leave it out")
    function = worker_init_fn is None or callable(worker_init_fn)
    check(function, worker_init_fn, "worker_init_fn", "a function of a worker's number")
    import torch

    check(isinstance(generator, torch.Generator | None), generator, "generator", "a torch.Generator")


def check_items(items: Any, most: int) -> None:
    """Raises InputError unless a batch sampler gave a list of 1 to `most` items."""
    try:
        count = len(items)
    except TypeError:
        raise InputError(
            f"the batch sampler gave {items!r}, which is no list of items: one that yields single items is a sampler="
        ) from None
    if not 1 <= count <= most:
        raise InputError(f"the batch sampler gave {count} clips; batch_size says 1 to {most}")


def begin(loader: Iterable[Any]) -> Iterator[Any]:
    """The iterator of a DataLoader, with its workers. Freed in a forked child, it would end those of its parent.

    Raises:
        InputError: something cannot be pickled for them.
        StreamvidError: they cannot be started, as their locks find no place in shared memory.
    """
    try:
        return in_children(iter(loader))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        if "pickle" not in str(error):
            raise
        raise InputError(
            f"{error}: functions for workers, as in ByClip, Transform(dali=…) and worker_init_fn, must be defined in a "
            "module, or give multiprocessing_context='fork'"
        ) from error
    except OSError as error:
        if limit_met(error) is not None:
            raise
        raise StreamvidError(
            f"DataLoader cannot start its workers ({error}): they need /dev/shm, writable and with room (in a "
            "container by docker run --shm-size=8g), and a working directory that is there; or give num_workers=0"
        ) from error


def begin_worker(then: Callable[[int], None] | None, worker: int) -> None:
    """Initialise a worker. A forked one must not free garbage of the main process: it may contain DALI pipelines, and
    freeing one whose threads do not exist in this process crashes the worker."""
    gc.freeze()
    end_with_parent()
    if then is not None:
        then(worker)


def end_with_parent() -> None:
    """Have this process end with its parent if it becomes, or is, a worker of a DataLoader. PyTorch's own watch begins
    behind `worker_init_fn`, and notices no end before that; with a fork server, whose end it waits for, none at all."""
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    while (parent := multiprocessing.parent_process()) is None:  # until this process is spawned
        time.sleep(1)
    by_server = isinstance(multiprocessing.current_process(), ForkServerProcess)
    # `is_alive` looks at a pipe, whose other end forks give to later workers, too: it is True while one of them lives.
    while parent.is_alive() and (by_server or os.getppid() == parent.pid):
        time.sleep(1)
    time.sleep(_PYTORCH_S)  # where PyTorch's watch works, the worker ends in order
    if get_worker_info() is not None:
        os._exit(1)
