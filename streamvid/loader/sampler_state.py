"""The state of a run in the order of PyTorch's samplers.

A DataLoader asks its sampler for batches long before the loop gets them, so the sampler's current state is ahead of the
loop. A saved state has the sampler's state from before the epoch, and the number of batches that the loop got: to
resume, the sampler begins the epoch again, and that many batches are skipped.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any, Final

import torch

from streamvid.checks import integer, is_integer
from streamvid.errors import InputError
from streamvid.loader.clip_items import Item
from streamvid.loader.item_errors import this_world
from streamvid.plan.checkpoint import BELONGS_TO, DAMAGED

log = logging.getLogger(__name__)

VERSION: Final = 1
"""Version of the state's fields."""


@dataclass(frozen=True)
class SamplerPosition:
    """A place in a run.

    Attributes:
        epoch_number: the epoch.
        batches: how many batches of it were handed out.
        samplers: `ResumableBatches.state` from before the epoch; None for the current one.
    """

    epoch_number: int
    batches: int = 0
    samplers: Sequence[Mapping[str, Any]] | None = None

    def where(self) -> str:
        """The position in words, for messages."""
        return f"in epoch {self.epoch_number} behind batch {self.batches}"


class EpochOrder(Iterator[Sequence[Item]]):
    """The lists of items of one epoch, without the first few.

    It asks for the next list before it yields one, so that its consumer can tell which one is the last.
    """

    def __init__(self, batches: Iterable[Sequence[Item]], skip: int) -> None:
        self._source, self._taken = batches, skip
        self._lists: Iterator[Sequence[Item]] | None = None
        self._coming: list[Sequence[Item]] = []
        self._failed: Exception | None = None
        self.count: int | None = None
        """Batches of the whole epoch, known from the last one on."""
        self.given: dict[int, Sequence[Item]] = {}
        """Lists that were given out, by their numbers in the epoch; to be removed when they are needed no more."""

    def __next__(self) -> Sequence[Item]:
        if self._lists is None:
            self._lists = islice(self._source, self._taken, None)
            self._coming = list(islice(self._lists, 1))
        if self._failed is not None:
            raise self._failed
        if not self._coming:
            if not self._taken:  # otherwise a loop that counts batches would never end
                raise InputError(
                    "an epoch has no batch: the sampler gives no clip, or drop_last leaves out all of them"
                )
            self.count = self._taken
            raise StopIteration
        (now,), self._coming = self._coming, []
        self.given[self._taken] = now
        self._taken += 1
        try:
            self._coming = list(islice(self._lists, 1))
        except Exception as error:
            self._failed = error  # raised in its place, after this list
        else:
            self.count = None if self._coming else self._taken
        return now


class ResumableBatches:
    """A batch sampler that can begin an epoch anywhere in it.

    Args:
        batches: the batch sampler that defines the order.
        generator: the DataLoader's generator, if it has one.
    """

    def __init__(self, batches: Iterable[Sequence[Item]], generator: torch.Generator | None) -> None:
        self._batches = batches
        self._parts = _parts([batches, generator])
        self._order, self._epoch = EpochOrder(batches, 0), 0

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[tuple[int, Sequence[Item]]]:
        """Lists of items, each with its epoch: several loaders may read one dataset, each in an epoch of its own."""
        return zip(repeat(self._epoch), self._order, strict=False)

    @property
    def num_replicas(self) -> int:
        """Ranks among which a sampler divides the items; 1 if none does."""
        found = (getattr(part, "num_replicas", None) for part in self._parts)
        return next((int(number) for number in found if is_integer(number)), 1)

    def begin(self, epoch: int, skip: int) -> EpochOrder:
        """Make the next `iter()` be this epoch without its first `skip` batches; returns the same order."""
        self._order, self._epoch = EpochOrder(self._batches, skip), epoch
        return self._order

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the samplers that have a `set_epoch`."""
        for part in self._parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)

    def state(self) -> list[dict[str, Any]]:
        """Everything that the order of the next epoch may depend on: for each sampler its `state_dict`, its generator's
        state and its epoch, as far as it has them; last, the state of PyTorch's global generator."""
        return [*map(_state, self._parts), {"generator": _text(torch.get_rng_state())}]

    def load(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore the samplers from a state. PyTorch's global generator is left alone, as it belongs to the program.

        Raises:
            InputError: the state is damaged, or of other samplers.
        """
        if [set(state) for state in states] != [set(state) for state in self.state()]:
            raise InputError("the state is of a loader with another sampler: make the loader the same, or leave it out")
        try:
            for part, state in zip(self._parts, states, strict=False):
                if "epoch" in state:
                    part.set_epoch(state["epoch"])
                if "state" in state:
                    part.load_state_dict(state["state"])
                if "generator" in state:
                    _generator(part).set_state(_tensor(state["generator"]))
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(DAMAGED) from error


@contextmanager
def global_generator(state: Mapping[str, Any] | None) -> Iterator[None]:
    """A context in which PyTorch's global generator has the state that it had when an epoch began, because samplers
    without a generator draw from it. Afterwards the generator is as before, for the training loop.

    Args:
        state: the last part of a `ResumableBatches.state`; None leaves the generator unchanged.
    """
    with torch.random.fork_rng(devices=[], enabled=state is not None):
        if state is not None:
            torch.set_rng_state(_tensor(state["generator"]))
        yield


def to_state(
    position: SamplerPosition, batches: ResumableBatches, batch_size: int, identity: Mapping[str, Any]
) -> dict[str, Any]:
    """A position as a dict, with about 7 KiB for each generator. JSON-safe if the samplers' own states are.

    Args:
        identity: `ClipDataset.identity` of the dataset.
    """
    samplers = batches.state() if position.samplers is None else position.samplers
    return {
        "version": VERSION,
        "batch_size": batch_size,
        **identity,
        "num_replicas": batches.num_replicas,
        "rank": _rank(),
        "epoch": position.epoch_number,
        "batches": position.batches,
        "samplers": tuple(samplers),  # not a list, in which torch.distributed.checkpoint would lose empty dicts
    }


def from_state(
    state: Mapping[str, Any], batches: ResumableBatches, batch_size: int, identity: Mapping[str, Any]
) -> SamplerPosition:
    """The position that a state holds. Also restores the samplers' states.

    Raises:
        InputError: the value is no state, or a damaged one, or a position within an epoch of other clips, batches or
            ranks.
    """
    if not isinstance(state, Mapping) or "samplers" not in state:
        raise InputError("this is not the state of a GpuDataLoader: give what its state_dict() returned")
    here = {"version": VERSION}
    if state.get("batches"):
        here |= {"batch_size": batch_size, **identity, "num_replicas": batches.num_replicas}
    for name, value in here.items():
        if state.get(name) != value:
            differs = BELONGS_TO.get(name, f"{name}={state.get(name)!r}; here it is {value}")
            raise InputError(f"the state is of a loader with {differs}: make the loader the same, or leave it out")
    try:
        epoch, made = (integer(state[name], "a count", least=0) for name in ("epoch", "batches"))
        position = SamplerPosition(epoch, made, [dict(sampler) for sampler in state["samplers"]])
        saved_by = str(state["rank"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(DAMAGED) from error
    batches.load(position.samplers or ())
    if made and batches.num_replicas == 1 and saved_by != (rank := _rank()):
        log.warning(
            "rank %s loads the state of rank %s: if their samplers do not give the same, clips will be repeated and "
            "lost; save a state of each rank (in torch.distributed.checkpoint under a name of its own), or divide the "
            "clips by a sampler with num_replicas, as DistributedSampler", rank, saved_by,
        )  # fmt: skip
    return position


def _rank() -> str:
    world = this_world()
    return f"{world.rank} of {world.size}"


def _parts(found: list[Any]) -> list[Any]:
    """Samplers, the samplers inside them, from the outside in, and generators; each once."""
    parts: list[Any] = []
    while found:
        part = found.pop(0)
        if part is not None and not any(part is other for other in parts):
            parts.append(part)
            found += [getattr(part, name, None) for name in ("batch_sampler", "sampler")]
    return parts


def _generator(part: Any) -> Any:
    return part if isinstance(part, torch.Generator) else getattr(part, "generator", None)


def _state(part: Any) -> dict[str, Any]:
    state: dict[str, Any] = {}
    if isinstance(generator := _generator(part), torch.Generator):
        state["generator"] = _text(generator.get_state())
    if hasattr(part, "set_epoch") and is_integer(epoch := getattr(part, "epoch", None)):
        state["epoch"] = int(epoch)
    if callable(getattr(part, "state_dict", None)) and callable(getattr(part, "load_state_dict", None)):
        state["state"] = part.state_dict()
    return state


def _text(state: torch.Tensor) -> str:
    """A generator's state, uint8 [bytes], as text for JSON."""
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
