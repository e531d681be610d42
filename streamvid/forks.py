"""Forked children of a process. They have copies of its objects and of its locked locks, but not its threads.

A child that waits for one of those threads, or takes one of those locks, waits for ever; a child that tells its
parent's workers to end ends them for the parent. So a child must not use, close or free objects made before the fork.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from streamvid.errors import InputError

if TYPE_CHECKING:
    from nvidia.dali import Pipeline

T = TypeVar("T")


class HomeProcess:
    """The process that has the threads of an object: the first that uses it."""

    def __init__(self) -> None:
        self._pid: int | None = None

    @property
    def here(self) -> bool:
        """Whether this process may close and free what the object has."""
        return self._pid in (None, os.getpid())

    def enter(self) -> int:
        """Use the object's threads in this process; returns its process id.

        Raises:
            InputError: this is a forked child of the process that uses them.
        """
        if not self.here:
            raise InputError("this process was forked from one that uses the loader: make a loader in it")
        self._pid = os.getpid()
        return self._pid

    def leave(self) -> None:
        """Note that the threads have ended, so that a child forked from now on may start its own. Without effect in an
        earlier child."""
        if self.here:
            self._pid = None


def keep(value: object) -> None:
    """Never free an object in this process, not even when the process ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def abandon_pipeline(pipeline: Pipeline) -> None:
    """Keep a DALI pipeline from being shut down or freed, either of which would wait for its threads."""
    keep(pipeline._pipe)
    pipeline._pipe = None


def in_children(value: T, abandon: Callable[[T], None] = keep) -> T:
    """Make every forked child abandon an object right after the fork, as long as the object exists, even as garbage
    that is not collected yet.

    Args:
        value: an object that waits for threads, or ends other processes, when it is freed.
        abandon: called with it in the child; default: it is never freed.

    Returns:
        the object.
    """
    _objects()[value] = abandon
    return value


@cache
def _objects() -> WeakKeyDictionary[object, Callable[..., None]]:
    objects: WeakKeyDictionary[object, Callable[..., None]] = WeakKeyDictionary()

    def abandon_all() -> None:
        for value, abandon in objects.items():
            abandon(value)

    os.register_at_fork(after_in_child=abandon_all)
    return objects
