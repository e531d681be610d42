"""A training run over its whole life: started, killed, resized, resumed; what it was handed is checked as it goes."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from streamvid import Mix, StreamLoader, Subset, TiledWindows, Transform, Window
from streamvid.dataset.dataset import Dataset
from streamvid.storage.lru_cache import LruCache
from streamvid.storage.range_reader import RangeReader
from streamvid.storage.retry import Retry
from streamvid.storage.shard_cache import CacheUnusable
from tools.simulate.data import data
from tools.simulate.engines import PlanEngine
from tools.simulate.expected import Entry, Mark, Options, Sample, Shape, check, check_passes, pool_of, weights_of
from tools.simulate.kernel import Kernel, Killed, Process

_RESIZED = Transform(resize=(64, 64))


@dataclass
class Job:
    """One run.

    Args:
        name: of its processes.
        kernel: where it runs.
        options_of: further options of a loader, for each node; None: it reads nothing, and its steps are the plan's.
        giant: about a thousand ranks.
    """

    name: str
    kernel: Kernel
    options_of: Callable[[int], dict[str, Any]] | None = None
    giant: bool = False
    nodes: int = 4
    epochs: int = 2
    retry: Retry = field(default_factory=Retry)
    longest_wait: float = 1e9
    history: list[Entry] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=lambda: [Mark(0, "")])
    shown: dict[Sample, int] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    version: int = 0
    loaders: list[StreamLoader] = field(default_factory=list)
    done: bool = False
    ended: bool = False

    def __post_init__(self) -> None:
        random = self.random = self.kernel.random
        kind = random.choice(("plain", "plain", "local", "steps", "steps", "weighted", "mix"))
        if self.giant:
            kind = random.choice(("plain", "steps", "mix", "local"))
        steps = random.randrange(2, 4 if self.giant else 9) if kind in ("steps", "mix") else None
        clips = data().local[0].clips
        self.options = Options(
            seed=random.randrange(1000), tiled=self.giant or random.random() < 0.4,
            shuffle=random.choice(("full", "full", "block", "none")),
            local=kind == "local", steps=steps, weighted=kind == "weighted", parts=2 if kind == "mix" else 1,
            where=random.choice((None, None, "width == 64")) if kind != "weighted" and not self.giant else None,
            exclude=tuple(random.sample([clips.key[row] for row in range(len(clips))], random.choice((0, 0, 1, 4)))),
        )  # fmt: skip
        self.shape = self._draw_shape()
        self.driver = self.kernel.current.process
        self._references: dict[int, list[Sample]] = {}

    def run(self) -> None:
        """Live until so many epochs are over."""
        self.driver = self.kernel.current.process
        while not self.done:
            try:
                self._incarnation()
            except Killed:
                if self.driver.dead:
                    raise
            except CacheUnusable:
                # Only where the cache is opened: who runs it corrects that, and starts it again.
                check(not self.processes or len(self.processes) > len(self.loaders), "the cache ended the run")
            for process in self.processes:
                self.kernel.kill(process)
            self.kernel.settle(self.processes)
            self.kernel.block(self.random.uniform(1, 20))
        self.ended = True

    # How it is started.

    def _draw_shape(self) -> Shape:
        random = self.random
        ranks = random.choice((1, 1, 1, 2, 2, 3, 4, 4, 6, 8, 12, 16))
        if self.giant:
            ranks = random.choice((1000, 1000, 1024, 999, 512))
        elif self.options_of is not None:
            ranks = random.choice((1, 1, 2, 2, 3, 4))
        nodes = random.choice([nodes for nodes in range(1, self.nodes + 1) if ranks % nodes == 0])
        bucket = random.choice((0, 0, 0, 1, 2, 5))
        batch = 1 if self.giant else random.randrange(1, 5)
        last = random.choice(("partial", "partial", "fill", "drop"))
        _, pool = pool_of(self.options, 0)
        if last == "drop" and self.options.steps is None and pool // nodes < ranks // nodes * batch:
            last = "partial"
        return Shape(ranks, nodes, batch, bucket, last)

    def _open(
        self, shape: Shape, rank: int, version: int, *, planned: bool, flat: bool = False, steps: int | None = None
    ) -> StreamLoader:
        options = self.options
        given = data().local[version] if planned else data().remote[version]
        dataset: Dataset = copy.copy(given)
        dataset.reader, dataset._indexes = RangeReader(self.retry), LruCache(1000)
        weights = weights_of(len(dataset)) if options.weighted else None
        exclude = options.exclude or None if steps is None else None
        subset: Any = Subset(dataset, where=options.where, weights=weights, exclude=exclude)
        if options.parts > 1:
            subset = Mix([(subset, 1), (Subset(copy.copy(dataset), where=options.where, exclude=exclude), 2.5)])
        more = {} if planned or self.options_of is None else self.options_of(rank * shape.nodes // shape.ranks)
        loader = StreamLoader(
            subset, batch_size=shape.batch, sampling=TiledWindows(frames=1) if options.tiled else Window(frames=1),
            transform=_RESIZED, seed=options.seed, shuffle=options.shuffle, group_by_size=shape.bucket or False,
            locality="node" if options.local and not flat else None, steps_per_epoch=steps or options.steps,
            last_batch=shape.last, device="cpu", rank=rank, world_size=shape.ranks,
            ranks_per_node=shape.ranks // shape.nodes, num_threads=1, retry_for=self.retry, **more,
        )  # fmt: skip
        if planned:
            loader._engine = PlanEngine()
        return loader

    def _choose_mark(self) -> Mark:
        """Where the run goes on: usually the last state, sometimes an older one."""
        place = len(self.marks) - 1
        if self.random.random() < 0.4:
            place = self.random.randrange(max(0, place - 12), place + 1)
        del self.marks[place + 1 :]
        mark = self.marks[place]
        del self.history[mark.entries :]
        if self.history:
            self.history[-1].over = mark.over
        return mark

    def _resume(self, loaders: list[StreamLoader], mark: Mark, version: int) -> None:
        """Load a state as a training program does, from JSON."""
        if not mark.text:
            for loader in loaders:
                loader.set_epoch(0)
            return
        state = json.loads(mark.text)
        if version > self._version_of(mark) and not self.options.appendable:
            for loader in loaders:
                loader.set_epoch(state["epoch"])
            return
        for process, loader in zip(self.processes, loaders, strict=True):
            with self.kernel.within(process):
                loader.load_state_dict(state)

    def _version_of(self, mark: Mark) -> int:
        """The dataset that the state at a mark is of."""
        state = json.loads(mark.text)
        return next(
            n for n, dataset in enumerate(data().local) if len(dataset.shards) * self.options.parts == state["shards"]
        )

    def _incarnation(self) -> None:
        """From a start to the next kill."""
        random, kernel = self.random, self.kernel
        if random.random() < 0.6:
            self.shape = self._draw_shape()
        mark = self._choose_mark()
        # Without a way to go on within an epoch after an append, the run takes it up with the next epoch.
        begins = not mark.text or not json.loads(mark.text)["segments"]
        if self.version == 0 and random.random() < 0.3 and (begins or self.options.appendable):
            self.version = 1
        elif mark.text and not begins and not self.options.appendable:
            self.version = self._version_of(mark)
        shape = self.shape
        self.processes = [
            Process(f"{self.name}.{rank}", rank * shape.nodes // shape.ranks) for rank in range(shape.ranks)
        ]
        kernel.say(f"START {shape} at step {mark.entries}, version {self.version}: {self.options}")
        self.loaders = loaders = list[StreamLoader]()
        for rank, process in enumerate(self.processes):
            with kernel.within(process):
                loaders.append(self._open(shape, rank, self.version, planned=self.options_of is None))
        self._resume(loaders, mark, self.version)
        known = self._quarantined()
        for process in self.processes:
            process.quarantined = known
        while not self.done and self._epoch(loaders):
            self.done = bool(self.history) and self.history[-1].epoch + 1 >= self.epochs and self._ended
        for process, loader in zip(self.processes, loaders, strict=True):
            with kernel.within(process):
                loader.close()

    def _quarantined(self) -> frozenset[str]:
        """The keys in the quarantine: of clips that are bad, and of no others."""
        if self.options_of is None:
            return frozenset()
        files = self.options_of(0)["quarantine"].glob("*.jsonl")
        keys = frozenset(
            json.loads(line)["key"].rpartition("/")[2] for file in files for line in file.read_text().splitlines()
        )
        check(keys <= self.kernel.bad, f"good clips are in quarantine: {keys - self.kernel.bad}")
        return keys

    # What it is handed.

    def _epoch(self, loaders: list[StreamLoader]) -> bool:
        """One iteration of all ranks, side by side. False if the run was ended by a fault."""
        random, kernel = self.random, self.kernel
        number, self._ended = loaders[0].epoch, True
        iterators = [iter(loader) for loader in loaders]
        planned, made, fresh = len(loaders[0]), 0, not self._under_way(number)
        while True:
            batches = self._next_of_all(iterators)
            if batches is None:
                break
            self._take(number, batches, loaders)
            made += 1
            if any(process.dead for process in self.processes):
                return False
            chance = random.random()
            if chance < 0.03:
                kernel.say("the run is killed")
                return False
            if chance < 0.05:
                return self._raise_in_loop(iterators, loaders)
            if chance < 0.06:
                self._break(iterators, loaders)
                return True
            if chance < 0.07 and (self.options.appendable or not self.version):
                kernel.say("an older state is loaded")
                self._resume(loaders, self._choose_mark(), self.version)
                self._close(iterators)
                self._ended = False
                return True
            kernel.block(random.uniform(0.05, 1))
        check(not fresh or made == planned, f"epoch {number} had {made} steps, and len said {planned}")
        states = self._states(loaders)
        check(states[0]["epoch"] == number + 1, f"behind epoch {number} the state is of {states[0]['epoch']}")
        check(not states[0]["segments"], "behind an epoch the state is within one")
        if self.history and self.history[-1].epoch == number:
            self._check_epoch(number)
            self._over(states[0])
        return True

    def _under_way(self, number: int) -> bool:
        return bool(self.history) and self.history[-1].epoch == number

    def _next_of_all(self, iterators: list[Iterator[Any]]) -> list[Any] | None:
        """The next batch of every rank, or None at the end, which all must reach at the same step."""
        batches = []
        for process, iterator in zip(self.processes, iterators, strict=True):
            began = self.kernel.now
            with self.kernel.within(process):
                batch = next(iterator, None)
            if batch is not None:
                batches.append(batch)
            waited = self.kernel.now - began
            check(waited <= self.longest_wait, f"{process.name} waited {waited:.0f} s for a batch")
        check(len(batches) in (0, len(iterators)), f"{len(batches)} of {len(iterators)} ranks have a further step")
        return batches or None

    def _take(self, number: int, batches: list[Any], loaders: list[StreamLoader]) -> None:
        """Put a step down, and check what can be seen of it alone."""
        samples, sizes = [], []
        for batch in batches:
            columns = (batch[name].tolist() for name in ("clip", "sample", "epoch", "valid"))
            rows = list(zip(*columns, strict=True))
            sizes.append(len(rows))
            samples += [self._seen(*row) for row in rows if row[3]]
        check(max(sizes) <= self.shape.batch and min(sizes) > 0, f"batches of {sizes} clips")
        states = self._states(loaders)
        check(states[0]["epoch"] == number, f"in epoch {number} the state is of {states[0]['epoch']}")
        before = self.history[-1] if self.history else None
        if before is not None and before.epoch != number:
            check(number == before.epoch + 1, f"epoch {number} comes after {before.epoch}")
            if not before.over:
                self._check_epoch(before.epoch)
        version = before.version if before is not None and before.epoch == number else self.version
        self.history.append(Entry(number, version, self.shape, samples, states[0]))
        self.marks.append(Mark(len(self.history), json.dumps(states[0])))

    def _seen(self, row: int, sample: int, number: int, _: bool) -> Sample:
        """A sample by its name; of one that is read, also that it shows the same frame whenever it comes."""
        if self.options_of is None or self.options.tiled:
            return row, sample, number
        if (
            self.options.weighted or self.options.parts > 1
        ):  # repeats show other frames; an append moves the second part
            return row, 0, number
        frame = self.shown.setdefault((row, 0, number), sample)
        check(frame == sample, f"clip {row} shows frame {sample} in pass {number}, and before it was {frame}")
        return row, 0, number

    def _states(self, loaders: list[StreamLoader]) -> list[dict[str, Any]]:
        """States of all ranks, or of some; they must be equal."""
        some = loaders if self.random.random() < 0.2 and not self.giant else [loaders[0], self.random.choice(loaders)]
        states = []
        for loader in some:
            with self.kernel.within(self.processes[loaders.index(loader)]):
                states.append(loader.state_dict())
        check(all(state == states[0] for state in states), f"states differ between ranks: {states}")
        return states

    def _raise_in_loop(self, iterators: list[Iterator[Any]], loaders: list[StreamLoader]) -> bool:
        """An exception of the training program; it saves the state in its `except`."""
        self.kernel.say("the loop raises")
        try:
            raise ArithmeticError
        except ArithmeticError:
            self._close(iterators)
            states = self._states(loaders)
        last = self.history[-1]
        if states[0]["epoch"] == last.epoch + 1:  # the exception came behind the last batch
            self._check_epoch(last.epoch)
            self._over(states[0])
        else:
            check(states[0] == last.state, "the state saved in `except` is not that of the last batch")
        return False

    def _break(self, iterators: list[Iterator[Any]], loaders: list[StreamLoader]) -> None:
        """The loop is left: its epoch is over."""
        self.kernel.say("break")
        self._close(iterators)
        last = self.history[-1]
        states = self._states(loaders)
        check(states[0]["epoch"] == last.epoch + 1 and not states[0]["segments"], "break does not end the epoch")
        self._over(states[0])

    def _over(self, state: dict[str, Any]) -> None:
        """The epoch is over; that is the state behind it."""
        self.history[-1].over = True
        self.marks.append(Mark(len(self.history), json.dumps(state), over=True))

    def _close(self, iterators: list[Any]) -> None:
        for process, iterator in zip(self.processes, iterators, strict=True):
            with self.kernel.within(process):
                iterator.close()

    # What it should have been handed.

    def _check_epoch(self, number: int) -> None:
        """Exactly once, by multiset; in order, where the topology did not change what the order is."""
        entries = [entry for entry in self.history if entry.epoch == number]
        version, state, options = entries[0].version, entries[-1].state, self.options
        first, size = state["first"], state["size"]
        clips = data().local[version].clips
        gone = {*self.options.exclude, *self.kernel.bad}
        absent = {row for row in range(len(clips)) if clips.key[row] in gone}
        expected = [one for one in self._reference(version, first + size)[first:] if one[0] % len(clips) not in absent]
        found = [sample for entry in entries for sample in entry.samples]
        missing, more = Counter(expected), Counter(found)
        missing.subtract(found)
        more.subtract(expected)
        extra = [sample for sample, times in more.items() if times > 0]
        check(not extra, f"epoch {number}: {len(extra)} samples too often, such as {extra[:3]}")
        lost = [sample for sample, times in missing.items() if times > 0]
        shape = self.shape
        dropped = 0 if shape.last != "drop" else (shape.ranks // shape.nodes * shape.batch + 1) * shape.nodes
        check(len(lost) <= dropped, f"epoch {number}: {len(lost)} samples lost, such as {lost[:3]}")
        shapes = {entry.shape for entry in entries}
        plain = not options.local and not any(entry.shape.bucket for entry in entries)
        if plain:
            check(found == expected[: len(found)], f"epoch {number} is in another order than an undisturbed one")
        if options.steps is None:
            length = pool_of(self.options, version)[1]
            check((first, size) == (number * length, length), f"epoch {number} is {size} samples from {first} on")
        elif plain or len(shapes) == 1:
            check(len(entries) == options.steps, f"epoch {number} had {len(entries)} steps of {options.steps}")
        else:
            check(len(entries) >= options.steps, f"epoch {number} had {len(entries)} steps of {options.steps}")

    def _reference(self, version: int, upto: int) -> list[Sample]:
        """The sample stream, at least up to there, as a single rank takes it that nothing happens to."""
        pool, length = pool_of(self.options, version)
        known = self._references.get(version, [])
        if len(known) < upto:
            flat = Shape(1, 1, 64, 0, "partial")
            loader = self._open(flat, 0, version, planned=True, flat=True, steps=-(-max(upto, 2 * length) // 64))
            known = []
            for batch in loader:
                columns: Any = batch
                known += zip(*(columns[name].tolist() for name in ("clip", "sample", "epoch")), strict=True)
            self._references[version] = known
            check_passes(self.options, known, pool, length, len(data().local[version]))
        return known[:upto]
