"""Stopping and going on, mixtures, subsets and weights: through the loader, with real clips."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamvid as sv
from streamvid.sampling.base import ClipTimes, SlotLayout
from tests.support.packed import pack_recipes
from tools.clips import Recipe

CLIPS = 23


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two datasets of small clips, the first in several shards and with labels and metadata."""
    one, two = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")
    numbers = range(CLIPS)
    recipes = {f"{n:02}": Recipe(width=64, height=64, frames=12 + n % 5, b_frames=2, seed=n) for n in numbers}
    columns = {
        "label": [n % 3 for n in numbers],
        "speed": [n / 2 for n in numbers],
        "words": [f"clip number {n}" for n in numbers],
    }
    first = pack_recipes(recipes, one, columns, shard_size=30_000)
    assert len(sv.Dataset.open(first).shards) >= 4
    recipes = {f"{n}": Recipe(width=64, height=64, frames=10, seed=100 + n) for n in range(5)}
    return str(first), str(pack_recipes(recipes, two))


def loader(dataset: Any, **options: Any) -> sv.StreamLoader:
    transform = sv.Transform(resize=40, crop=32, horizontal_flip=0.5)
    known: dict[str, Any] = {"batch_size": 3, "sampling": sv.Window(4, stride=2), "transform": transform, "seed": 4}
    return sv.StreamLoader(dataset, device="cpu", **{**known, **options})


def summary(batch: dict[str, Any]) -> tuple[Any, ...]:
    """Everything in a batch, as values that compare."""
    return tuple(
        (name, value.numpy().tobytes() if isinstance(value, torch.Tensor) else value)
        for name, value in sorted(batch.items())
    )


@pytest.mark.parametrize(
    ("stop", "locality", "shuffle"),
    [
        (0, None, "full"),
        (1, None, "full"),
        (1, "node", "block"),
        (4, None, "block"),
        (4, "node", "full"),
        (6, None, "none"),
    ],
)
def test_the_same_batches_go_on(datasets: tuple[str, str], shuffle: Any, locality: Any, stop: int) -> None:
    options = {
        "shuffle": shuffle,
        "locality": locality,
        "rank": 1,
        "world_size": 2,
        "ranks_per_node": 1,
        "batch_size": 2,
    }
    with loader(datasets[0], **options) as whole:
        batches = [summary(batch) for _ in range(3) for batch in whole]
        steps = len(whole)
    with loader(datasets[0], **options) as first:
        state = first.state_dict()
        for _, batch in zip(range(stop), first, strict=False):
            assert batch is not None
            state = json.loads(json.dumps(first.state_dict()))
    assert len(json.dumps(state)) < 1024
    with loader(datasets[0], **options) as second:
        second.load_state_dict(state)
        second.set_epoch(second.epoch)  # as training loops do; it must not start the epoch anew
        rest = [summary(batch) for _ in range(3 if stop < steps else 2) for batch in second]
    assert rest == batches[stop:]


def test_every_rank_has_the_same_state(datasets: tuple[str, str]) -> None:
    loaders = [loader(datasets[0], rank=rank, world_size=3) for rank in range(3)]
    iterators = [iter(one) for one in loaders]
    for _ in range(2):
        for iterator in iterators:
            next(iterator)
        assert len({json.dumps(one.state_dict()) for one in loaders}) == 1
    for one, iterator in zip(loaders, iterators, strict=True):
        iterator.close()  # type: ignore[attr-defined]
        one.close()


@pytest.mark.parametrize("locality", [None, "node"])
def test_resized_within_an_epoch_and_between(datasets: tuple[str, str], locality: Any) -> None:
    """4 ranks on 2 nodes, then 3 on 1, then 2 on 2 with another batch size; two epochs: each clip twice."""
    state: Any = None
    seen: Counter[int] = Counter()
    epochs_seen: Counter[tuple[int, int]] = Counter()
    plans = [(4, 2, 1, 3), (3, 3, 2, 2), (2, 1, 5, None)]  # world, ranks per node, batch size, steps
    for world, per_node, batch_size, most in plans:
        states = []
        for rank in range(world):
            with loader(
                datasets[0],
                rank=rank,
                world_size=world,
                ranks_per_node=per_node,
                batch_size=batch_size,
                locality=locality,
            ) as one:
                if state is not None:
                    one.load_state_dict(state)
                made = 0
                while one.epoch < 2 and (most is None or made < most):
                    for batch in one:
                        made += 1
                        for clip, epoch in zip(
                            batch["clip"][batch["valid"]].tolist(), batch["epoch"].tolist(), strict=False
                        ):
                            seen[clip] += 1
                            epochs_seen[epoch, clip] += 1
                        states.append((made, json.dumps(one.state_dict())))
                        if most is not None and made == most:
                            break
        by_step: dict[int, set[str]] = {}
        for step, text in states:
            by_step.setdefault(step, set()).add(text)
        assert all(len(texts) == 1 for texts in by_step.values())
        state = json.loads(states[-1][1])
    assert seen == Counter(dict.fromkeys(range(CLIPS), 2))
    assert set(epochs_seen.values()) == {1}


@pytest.mark.filterwarnings("ignore")
def test_a_state_in_a_distributed_checkpoint(datasets: tuple[str, str], tmp_path: Path) -> None:
    """Given to torch.distributed.checkpoint with the model, as its `Stateful`; by one process, which needs no group."""
    import torch.distributed.checkpoint as dcp

    with loader(datasets[0]) as one, loader(datasets[0]) as resumed:
        batches = iter(one)
        next(batches)
        dcp.save({"loader": one}, checkpoint_id=tmp_path / "saved", no_dist=True)
        dcp.load({"loader": resumed}, checkpoint_id=tmp_path / "saved", no_dist=True)
        assert list(map(summary, resumed)) == list(map(summary, batches))


def test_what_is_prefetched_does_not_count(datasets: tuple[str, str]) -> None:
    with loader(datasets[0]) as one:
        iterator = iter(one)
        first = next(iterator)
        state = one.state_dict()
        iterator.close()  # type: ignore[attr-defined]
    with loader(datasets[0]) as again:
        again.load_state_dict(state)
        rest = [clip for batch in again for clip in batch["clip"].tolist()]
    assert sorted(rest + first["clip"].tolist()) == list(range(CLIPS))


def test_an_iterator_that_nobody_uses_changes_nothing(datasets: tuple[str, str]) -> None:
    with loader(datasets[0]) as whole:
        batches = [summary(batch) for _ in range(2) for batch in whole]
    with loader(datasets[0]) as first:
        before = first.state_dict()
        stray = [iter(first) for _ in range(3)]
        assert (first.state_dict(), first.epoch) == (before, 0)
        got = []
        for batch in first:
            got.append(summary(batch))
            if len(got) == 3:
                state = first.state_dict()
        del stray
        assert got == batches[: len(first)]
        assert (first.epoch, first.state_dict()["epoch"]) == (1, 1)
    with loader(datasets[0]) as second:
        early = iter(second)
        second.load_state_dict(state)
        stray = [iter(second), iter(second)]
        assert second.state_dict() == state
        assert second.epoch == 0
        # One that was asked for before the state was loaded begins where the state says, as it begins with its batch.
        assert [summary(batch) for batch in early] == batches[3 : len(second)]
        del stray
        assert [summary(batch) for batch in second] == batches[len(second) :]


def test_a_first_batch_that_fails_does_not_begin_an_epoch(datasets: tuple[str, str]) -> None:
    fail = [True]

    def function(batch: Any) -> Any:
        if fail.pop() if fail else False:
            raise ZeroDivisionError
        return batch

    with loader(datasets[0], batch_fn=function) as one:
        before = one.state_dict()
        with pytest.raises(ZeroDivisionError):
            list(one)
        assert one.state_dict() == before
        assert sorted(clip for batch in one for clip in batch["clip"].tolist()) == list(range(CLIPS))


@pytest.mark.parametrize("taken", [1, 5, 8])
def test_an_epoch_left_by_break_is_over_in_the_same_run_and_in_a_resumed_one(
    datasets: tuple[str, str], taken: int, caplog: pytest.LogCaptureFixture
) -> None:
    with loader(datasets[0]) as one, loader(datasets[0]) as resumed:
        assert len(one) == 8
        for made, _ in enumerate(one, start=1):
            within = one.state_dict()
            if made == taken:
                break
        state = one.state_dict()
        # A loop that was left before its end could have been meant to go on: that is said, once.
        said = [record.getMessage() for record in caplog.records if "left" in record.getMessage()]
        assert len(said) == (taken < 8)
        assert all("epoch 0" in text and "epoch 1" in text for text in said)
        assert one.state_dict() == state
        assert len(caplog.records) == len(said)
        resumed.load_state_dict(state)
        assert one.epoch == resumed.epoch == state["epoch"] == 1
        assert [summary(batch) for batch in one] == [summary(batch) for batch in resumed]
        resumed.load_state_dict(within)
        assert sum(1 for _ in resumed) == (8 - taken or 8)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_an_epoch_set_after_break_is_in_the_state(datasets: tuple[str, str], held: bool, epoch: int) -> None:
    with loader(datasets[0]) as one, loader(datasets[0]) as resumed, loader(datasets[0]) as whole:
        iterator = iter(one)
        next(iterator)
        next(iterator)
        if not held:
            iterator.close()  # type: ignore[attr-defined]
        one.set_epoch(epoch)
        resumed.load_state_dict(one.state_dict())
        whole.set_epoch(epoch)
        expected = [summary(batch) for batch in whole]
        assert one.epoch == resumed.epoch == epoch
        assert [summary(batch) for batch in resumed] == expected
        assert [summary(batch) for batch in one] == expected
        del iterator


def test_an_epoch_set_in_the_place_of_a_loaded_state(
    datasets: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """As by a loop that begins with epoch 0 whatever was loaded: it was silent, and the run began anew."""
    with loader(datasets[0]) as one:
        for _ in one:
            state = one.state_dict()
        for epochs, said in (((1, 2), 0), ((0, 1), 1)):
            one.load_state_dict(state)
            for epoch in epochs:
                one.set_epoch(epoch)
                assert len(list(one)) == len(one)
            assert caplog.text.count("set_epoch(0) sets the loaded state aside, which goes on in epoch 1") == said


def test_an_epoch_set_within_the_loop_is_the_next_one(datasets: tuple[str, str]) -> None:
    with loader(datasets[0]) as one, loader(datasets[0]) as resumed:
        for made, _ in enumerate(one):
            if made == 2:
                one.set_epoch(7)
                assert one.state_dict()["epoch"] == 7
            if made == 3:  # the loop goes on, and that is what a state says
                resumed.load_state_dict(one.state_dict())
                assert resumed.epoch == 0
        assert one.epoch == one.state_dict()["epoch"] == 7
        assert sum(1 for _ in resumed) == 4


def test_a_state_saved_for_an_exception_resumes_the_epoch(datasets: tuple[str, str]) -> None:
    """Ctrl-C, and the run is saved: nothing of the epoch may be lost."""
    states = []
    with loader(datasets[0]) as one, loader(datasets[0]) as resumed:
        seen: list[int] = []
        try:
            for batch in one:
                seen += batch["clip"].tolist()
                if len(seen) == 9:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            states.append(one.state_dict())
        resumed.load_state_dict(states[0])
        assert sorted(seen + [clip for batch in resumed for clip in batch["clip"].tolist()]) == list(range(CLIPS))
        assert one.state_dict()["epoch"] == 1


@pytest.mark.parametrize("gpu_loader", [False, True])
def test_the_rest_of_an_epoch_comes_after_an_error_of_the_loader(
    datasets: tuple[str, str], tmp_path: Path, gpu_loader: bool
) -> None:
    """As where the program waits for its storage and begins again: it got the next epoch, and lost the rest of this."""
    folder = Path(shutil.copytree(datasets[0], tmp_path / "ds"))

    def made() -> Any:
        if not gpu_loader:
            return loader(folder, quarantine=tmp_path / "q")
        clips = sv.ClipDataset(folder, sampling=sv.Window(4), transform=sv.Transform(resize=40, crop=32))
        generator = torch.Generator().manual_seed(1)
        return sv.GpuDataLoader(clips, batch_size=3, shuffle=True, generator=generator, device="cpu")

    with made() as one:
        batches = [[*one], [*one]]
    expected = [[*map(summary, epoch)] for epoch in batches]
    dataset = sv.Dataset.open(folder)
    first = dataset.clips.shard[batches[0][0]["clip"]]
    shard = Path(dataset.shard_path(next(s for s in range(len(dataset.shards)) if s not in first)))
    whole = shard.read_bytes()
    with made() as one:
        shard.unlink()
        got: list[Any] = []
        with pytest.raises(sv.DatasetError, match="cannot be read"):
            got.extend(map(summary, one))
        assert one.epoch == 0
        shard.write_bytes(whole)
        assert 0 < len(got) < len(expected[0])
        got += map(summary, one)
        assert got == expected[0]
        assert [*map(summary, one)] == expected[1]


def test_of_several_iterations_the_one_that_began_last_is_in_the_state(datasets: tuple[str, str]) -> None:
    with loader(datasets[0]) as one:
        first, second = iter(one), iter(one)
        next(second)
        next(second)
        assert next(first)["epoch"][0] == 1
        assert (one.epoch, one.state_dict()["epoch"]) == (2, 1)
        next(second)
        assert one.state_dict()["segments"][-1][3] == 1
        second.close()  # type: ignore[attr-defined]
        next(first)
        assert one.state_dict()["segments"][-1][3] == 2
        assert sum(1 for _ in first) == 6
        assert one.state_dict()["epoch"] == 2


@pytest.mark.parametrize(("before", "after"), [(4, 2), (1, 4)])
@pytest.mark.parametrize("taken", [0, 2, 5])
def test_an_epoch_is_so_many_steps_on_other_ranks(
    datasets: tuple[str, str], before: int, after: int, taken: int
) -> None:
    """Saved before the first batch, within the epoch, and at its end."""
    options = {"steps_per_epoch": 5, "batch_size": 1, "transform": None, "last_batch": "drop"}
    with loader(datasets[0], rank=0, world_size=before, **options) as one:
        state = one.state_dict()
        for _ in zip(range(taken), one, strict=False):
            state = json.loads(json.dumps(one.state_dict()))
    seen: Counter[int] = Counter()
    for rank in range(after):
        with loader(datasets[0], rank=rank, world_size=after, **options) as two:
            two.load_state_dict(state)
            assert (len(two), two.epoch) == (5, taken // 5)
            for epoch in range(2):
                clips = [clip for batch in two for clip in batch["clip"].tolist()]
                assert len(clips) == 5 - (taken % 5 if epoch == 0 else 0)
                seen.update(clips)
    with loader(datasets[0], rank=0, world_size=1, steps_per_epoch=100, batch_size=1, transform=None) as stream:
        consumed, total = taken * before, sum(seen.values())
        order = [batch["clip"].item() for _, batch in zip(range(consumed + total), stream, strict=False)]
    assert seen == Counter(order[consumed:])


def test_another_run_refuses_the_state(datasets: tuple[str, str]) -> None:
    with loader(datasets[0]) as one:
        state = one.state_dict()
    changes: list[tuple[dict[str, Any], str]] = [
        ({"seed": 5}, r"steps_per_epoch \(seed \d+, here 5\): make"),
        ({"sampling": sv.Window(5)}, r"sampling or padding \(sampling 'Window\(.*, here 'Window\(frames=5\)'\)"),
        ({"sampling": sv.Window(4, stride=2, pad="constant")}, "sampling or padding .*pad='constant'"),
        ({"shuffle": False, "steps_per_epoch": 3}, r"\(shuffle 'full', here 'none'; steps_per_epoch None, here 3\)"),
        ({"dataset": datasets[1]}, rf"another dataset, .* \(clips \[.*{re.escape(datasets[0])}.*\], here"),
        ({"dataset": sv.Subset(datasets[0], where="label == 1")}, "'where': 'label == 1'"),
    ]
    for change, words in changes:
        with loader(change.pop("dataset", datasets[0]), **change) as other:
            with pytest.raises(sv.InputError, match=words) as error:
                other.load_state_dict(state)
            assert "\n" not in str(error.value)


class OwnSampler:
    """A user's sampler, whose repr has its address in it."""

    pad: Any = "edge"
    num_frames = 2
    num_random = 0

    def num_samples(self, frames: Any, duration: Any, tick: Any, whole: bool = False) -> Any:
        return np.ones(len(frames), dtype=np.int64)

    def sample(self, clip: ClipTimes, random: Any, number: int) -> SlotLayout:
        return SlotLayout(np.array([0, 1]), clip.frames, in_ticks=False)

    def is_too_short(self, frames: Any, duration: Any, tick: Any) -> Any:
        return np.zeros(len(frames), dtype=bool)


def test_a_sampler_of_ones_own(datasets: tuple[str, str]) -> None:
    """Its state resumes in another process, where it has another address."""
    first = loader(datasets[0], sampling=OwnSampler())
    next(iter(first))
    resumed = loader(datasets[0], sampling=OwnSampler())
    resumed.load_state_dict(first.state_dict())
    assert resumed.epoch == 1


def test_subsets_and_columns(datasets: tuple[str, str]) -> None:
    some = sv.Subset(datasets[0], where='label in (0, 2) and speed >= 3 and "number" in words')
    expected = [n for n in range(CLIPS) if n % 3 != 1 and n / 2 >= 3]
    with loader(some, columns=["speed", "words"]) as one:
        seen = {}
        for batch in one:
            assert batch["speed"].dtype == torch.float64
            for key, label, speed, words in zip(
                batch["key"], batch["label"].tolist(), batch["speed"].tolist(), batch["words"], strict=True
            ):
                seen[int(key)] = (label, speed, words)
        assert len(one) == -(-len(expected) // 3)
    assert seen == {n: (n % 3, n / 2, f"clip number {n}") for n in expected}
    with loader(sv.Subset(datasets[0], keys=["03", "17"])) as two:
        assert sorted(key for batch in two for key in batch["key"]) == ["03", "17"]
    with pytest.raises(sv.InputError, match="no clip fits"):
        loader(sv.Subset(datasets[0], where="label == 99"))


def test_weights(datasets: tuple[str, str]) -> None:
    weighted = sv.Subset(datasets[0], weights={0: 2, 1: 0.5, 2: 0})
    counts = Counter({label: sum(n % 3 == label for n in range(CLIPS)) for label in range(3)})
    with loader(weighted, batch_size=1) as one:
        labels = [Counter(label for batch in one for label in batch["label"].tolist()) for _ in range(6)]
        assert len(one) == round(2 * counts[0] + 0.5 * counts[1])
    for seen in labels:
        assert seen[2] == 0
        assert abs(seen[0] - 2 * counts[0]) <= 1
        assert abs(seen[1] - 0.5 * counts[1]) <= 1


def test_a_mixture(datasets: tuple[str, str]) -> None:
    mix = sv.Mix([(datasets[0], 3), (datasets[1], 1)])
    with loader(mix, batch_size=4, steps_per_epoch=10) as one:
        assert len(one) == 10
        seen: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
        batches = []
        for _ in range(2):
            for batch in one:
                batches.append(summary(batch))
                for part, epoch, clip in zip(*(batch[n].tolist() for n in ("dataset", "epoch", "clip")), strict=True):
                    assert (clip >= CLIPS) == (part == 1)
                    seen[part].append((epoch, clip))
    assert len(batches) == 20
    assert len(seen[1]) > 5  # more than a pass over the second
    for part, length in ((0, CLIPS), (1, 5)):
        assert [epoch for epoch, _ in seen[part]] == [n // length for n in range(len(seen[part]))]
        assert len(set(seen[part])) == len(seen[part])
    with loader(mix, batch_size=4, steps_per_epoch=10) as two:
        for _, _batch in zip(range(3), two, strict=False):
            state = two.state_dict()
    with loader(mix, batch_size=4, steps_per_epoch=10) as three:
        three.load_state_dict(state)
        assert [summary(batch) for _ in range(2) for batch in three] == batches[3:]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"shuffle": "some"}, "shuffle"), ({"locality": "rack"}, "locality"),
        ({"steps_per_epoch": 0}, "steps_per_epoch"),
        ({"steps_per_epoch": 2**31 - 1}, "whose order takes .* give fewer steps"),
        ({"locality": "node", "steps_per_epoch": 3}, "locality"), ({"seed": 1.5}, "seed"),
        ({"columns": ["speeed"]}, "speeed"), ({"rank": 0}, "world_size"), ({"ranks_per_node": 0}, "ranks_per_node"),
        ({"columns": [1]}, "columns"), ({"columns": True}, "columns"), ({"drop_last": "no"}, "drop_last"),
        ({"columns": np.array(2)}, "columns must be a list"), ({"roots": torch.tensor(2)}, "roots must be a list"),
        ({"shuffle": np.array([1, 2])}, "shuffle must be"), ({"locality": np.array([1, 2])}, "locality must be"),
        ({"world_size": torch.tensor([1, 2])}, "world_size must be"), ({"drop_last": np.array([1, 2])}, "drop_last"),
        ({"cache_dir": 5}, "cache_dir"), ({"cache_dir": "~/cache"}, "cache_dir ~/cache: only a shell"),
        ({"cache_dir": "s3://b/cache"}, "cache_dir must be a local path; it is s3://b/cache"),
        ({"quarantine": "s3://b/bad"}, "quarantine must be a local path; it is s3://b/bad"),
        ({"batch_fn": lambda batch: None}, "returned None"),
    ],
)  # fmt: skip
def test_silly_options(datasets: tuple[str, str], change: dict[str, Any], word: str) -> None:
    with pytest.raises(sv.InputError, match=word) as error:
        next(iter(loader(datasets[0], **change)))
    assert "\n" not in str(error.value)


def test_silly_selections_states_and_epochs(datasets: tuple[str, str]) -> None:
    for value in (True, 3, np.array(2), len):
        for subset in (sv.Subset(datasets[0], keys=value), sv.Subset(datasets[0], exclude=value)):  # type: ignore[arg-type]
            with pytest.raises(sv.InputError, match="keys must be a list of texts"):
                loader(subset)
    with pytest.raises(sv.InputError, match="sampling"):
        sv.ClipDataset(datasets[0], sampling=[])  # type: ignore[arg-type]
    with loader(datasets[0]) as one:
        with pytest.raises(sv.InputError, match="epoch must be a whole number from 0 to 2147483647"):
            one.set_epoch(10**30)
        for no_state in ({}, [], "segments", None, {"epoch": 1}):
            with pytest.raises(sv.InputError, match="not the state of a StreamLoader: give what its state_dict"):
                one.load_state_dict(no_state)  # type: ignore[arg-type]
        for name in ("version", "dataset", "sampling", "order"):
            with pytest.raises(sv.InputError, match="the state"):
                one.load_state_dict({**one.state_dict(), name: np.array([1, 2])})


def test_weights_that_round_to_no_clip(datasets: tuple[str, str]) -> None:
    """Half a clip in an epoch is none; a little more is one."""
    alone = sv.Subset(datasets[1], keys=["0"], weights=lambda dataset, rows: np.full(1, 0.5))
    with pytest.raises(sv.InputError, match="the weights leave no clip in an epoch"):
        loader(alone, steps_per_epoch=2)
    with loader(replace(alone, weights=lambda dataset, rows: np.full(1, 0.51)), steps_per_epoch=2) as one:
        assert [batch["key"] for batch in one] == [["0"] * 3] * 2


@pytest.mark.parametrize("whole", [True, False])
def test_a_forked_process_does_not_wait_for_threads_that_it_lacks(datasets: tuple[str, str], whole: bool) -> None:
    with loader(datasets[0]) as one:
        iterator = iter(one)
        _ = list(iterator) if whole else next(iterator)
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)  # ends a child that waits
            try:
                next(iter(one) if whole else iterator)
            except sv.InputError as error:
                os._exit(7 if "forked" in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        iterator.close()  # type: ignore[attr-defined]


def test_samples_of_a_clip_are_items_of_their_own(datasets: tuple[str, str], tmp_path: Path) -> None:
    with loader(datasets[0], sampling=sv.TiledWindows(4), batch_size=5) as one:
        starts = sorted(
            (clip, round(pts[0], 3))
            for batch in one
            for clip, pts in zip(batch["clip"].tolist(), batch["pts"].tolist(), strict=True)
        )
    frames = [12 + n % 5 for n in range(CLIPS)]
    assert len(starts) == sum(-(-count // 4) for count in frames) == len(set(starts))
    assert Counter(clip for clip, _ in starts) == {n: -(-count // 4) for n, count in enumerate(frames)}
    assert np.all(np.diff([second for clip, second in starts if clip == 0]) > 0)


def test_a_state_of_one_dataset_is_none_of_a_mix(datasets: tuple[str, str]) -> None:
    """Although the mixture has the dataset's shards and more, as if some were appended."""
    mix = sv.Mix([(datasets[0], 1), (datasets[1], 1)])
    with loader(datasets[0]) as one, loader(mix) as both:
        states = []
        for source in (one, both):
            next(iter(source))
            states.append(json.loads(json.dumps(source.state_dict())))
        with pytest.raises(sv.InputError, match="over one dataset, and this loader streams a Mix of 2"):
            both.load_state_dict(states[0])
        with pytest.raises(sv.InputError, match="over a Mix of 2, and this loader streams one dataset"):
            one.load_state_dict(states[1])
        both.load_state_dict(states[1])


@pytest.mark.parametrize(
    ("sizes", "steps", "left", "warned"),
    [
        ([1, 4], None, 0, True), ([1, 4], None, 1, False), ([1, 4], None, -1, False), ([1, 4], 8, 0, False),
        ([1, 1], None, 1, False), ([2, 3, 4], None, 0, True), ([2, 3, 4], None, 1, False),
    ],
)  # fmt: skip
def test_the_rest_of_an_epoch_that_other_ranks_began_is_not_left_in_silence(
    datasets: tuple[str, str],
    caplog: pytest.LogCaptureFixture,
    sizes: list[int],
    steps: int | None,
    left: int,
    warned: bool,
) -> None:
    """As by Lightning, which counts len(loader) batches in each epoch. A loop that was left elsewhere, as by an error
    or Ctrl-C, says nothing of such a framework."""
    state, taken = None, 0
    for size in sizes:
        caplog.clear()
        with loader(datasets[0], steps_per_epoch=steps, batch_size=size) as batches:
            if state is not None:
                batches.load_state_dict(state)
            count = 2 if size != sizes[-1] or state is None else len(batches) - left - taken
            state = [batches.state_dict() for _, _ in zip(range(count), batches, strict=False)][-1]
            taken += count
    assert ["was left after len" in message for message in caplog.messages] == [True] * warned


def test_the_epoch_that_lightning_names_is_that_of_a_new_loader_alone(datasets: tuple[str, str]) -> None:
    """Not of one whose state was loaded, nor of one that went on by itself, as before a second `fit`."""
    clips = sv.ClipDataset(datasets[1], sampling=sv.Window(4))
    with loader(datasets[1]) as stream, sv.GpuDataLoader(clips, batch_size=3, device="cpu") as items:
        for batches in (stream, items):
            assert batches.batch_sampler.batch_size == 3  # Lightning reads it for DeepSpeed
            for named, epoch in ((0, 0), (4, 4), (2, 4)):
                batches.batch_sampler.sampler.set_epoch(named)
                assert batches.epoch == epoch
            state = next(batches.state_dict() for _ in batches)
            batches.batch_sampler.sampler.set_epoch(9)
            assert batches.epoch == 5
            batches.load_state_dict(state)
            batches.batch_sampler.sampler.set_epoch(9)
            assert batches.epoch == 4
