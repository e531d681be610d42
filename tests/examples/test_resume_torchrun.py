"""examples/resume.py under a real torchrun: killed, resized and stopped, and yet every clip once per epoch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streamvid.dataset.dataset import Dataset
from tests.support.packed import pack_recipes
from tools.clips import Recipe

CLIPS, EPOCHS, EVERY = 37, 2, 3
SECONDS = 120
"""More than this no part of a job may take, or it counts as hanging."""

# Runs the example unchanged, but for a pause at a step of this run, which lasts until somebody sends a signal.
RANK = """
import importlib.util, os, pathlib, signal, sys
spec = importlib.util.spec_from_file_location("resume", os.environ["EXAMPLE"])
resume = importlib.util.module_from_spec(spec)
spec.loader.exec_module(resume)
here = pathlib.Path(os.environ["PAUSED_FILES"] + "." + os.environ["RANK"])
pathlib.Path(f"{here}.pid").write_text(str(os.getpid()))
meet, fsync, left = resume.on_any_rank, os.fsync, int(os.environ["PAUSE_AFTER"])

def pause():
    here.touch()
    signal.pause()

def on_any_rank(happened, device):
    global left
    left -= 1
    if left == 0 and not os.environ.get("PAUSE_IN_SAVE"):
        pause()
    return meet(happened, device)

def fsync_or_pause(file):
    if left <= 0:
        pause()
    fsync(file)

resume.on_any_rank = on_any_rank
if os.environ.get("PAUSE_IN_SAVE"):
    os.fsync = fsync_or_pause
sys.exit(resume.main())
"""


@dataclass(frozen=True)
class Run:
    """What a run's ranks logged.

    Attributes:
        start: the step that it began with.
        ranks: each rank's lines, by step.
    """

    start: int
    ranks: list[dict[int, dict[str, Any]]]

    @classmethod
    def read(cls, log: Path, world_size: int) -> Run:
        starts, ranks = set(), []
        for rank in range(world_size):
            head, *lines = [json.loads(line) for line in Path(f"{log}.{rank}").read_text().splitlines()]
            assert (head["rank"], head["world_size"]) == (rank, world_size)
            starts.add(head["start"])
            steps = [line["step"] for line in lines]
            assert steps == list(range(head["start"], head["start"] + len(steps)))
            ranks.append({line["step"]: line for line in lines})
        assert len(starts) == 1
        return cls(starts.pop(), ranks)

    @property
    def end(self) -> int:
        """The step after the last one that all ranks have begun. When a run is killed, some may be one ahead."""
        ends = [self.start + len(rank) for rank in self.ranks]
        assert max(ends) - min(ends) <= 1, f"ranks made unlike numbers of steps: up to {ends}"
        return min(ends)

    def clips(self, first: int, last: int) -> list[tuple[int, int]]:
        """Epoch and clip of everything that the steps from `first` up to `last` consumed."""
        lines = [rank[step] for step in range(first, last) for rank in self.ranks]
        return [(line["epoch"], clip) for line in lines for clip in line["clips"]]


@dataclass
class Job:
    """torchrun, and the processes that it started."""

    process: subprocess.Popen[str]
    files: str
    world_size: int

    def wait_for_pause(self, ranks: int) -> None:
        """Until so many ranks have come to their pause."""
        until = time.monotonic() + SECONDS
        while sum(os.path.exists(f"{self.files}.{rank}") for rank in range(self.world_size)) < ranks:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < until, "the ranks do not get to their pause"
            time.sleep(0.05)

    def kill_rank(self, rank: int) -> None:
        os.kill(int(Path(f"{self.files}.{rank}.pid").read_text()), signal.SIGKILL)

    def kill(self) -> None:
        """All at once, as when the power fails. torchrun first, so that it does not report anything to anyone."""
        self.process.kill()
        for rank in range(self.world_size):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                self.kill_rank(rank)
        self.process.communicate()

    def wait(self) -> int:
        out, err = self.process.communicate(timeout=SECONDS)
        print(out, err)  # pytest shows it if the test fails
        return self.process.returncode


@dataclass(frozen=True)
class Jobs:
    """Starts jobs on one dataset that share a checkpoint."""

    dataset: Path
    folder: Path
    python: Path
    started: list[Job]

    def start(
        self, name: str, world_size: int, *options: str, pause_after: int = -1, in_save: bool = False, batch: int = 1
    ) -> Job:
        files = str(self.folder / f"{name}-paused")
        (self.folder / "rank.py").write_text(RANK)
        environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        environment |= {
            "PYTHONPATH": os.getcwd(),
            "PYTHON_EXEC": str(self.python),
            "OMP_NUM_THREADS": "1",
            "EXAMPLE": os.path.abspath("examples/resume.py"),
            "PAUSED_FILES": files,
            "PAUSE_AFTER": str(pause_after),
            "PAUSE_IN_SAVE": "1" if in_save else "",
        }
        command = [str(self.python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
        command += [str(self.folder / "rank.py"), str(self.dataset), "--checkpoint", str(self.checkpoint)]
        command += ["--every", str(EVERY), "--epochs", str(EPOCHS), "--batch-size", str(batch), "--threads", "1"]
        command += ["--seen", str(self.folder / name), *options]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )  # fmt: skip
        self.started.append(Job(process, files, world_size))
        return self.started[-1]

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

    def read(self, name: str, world_size: int) -> Run:
        return Run.read(self.folder / name, world_size)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipes = {f"{n:02}.mp4": Recipe(width=64, height=64, frames=6, gop=6, seed=n) for n in range(CLIPS)}
    packed = pack_recipes(recipes, tmp_path_factory.mktemp("resume"), shard_size=40_000, workers=2)
    opened = Dataset.open(packed)
    assert len(opened) == CLIPS
    assert len(opened.shards) > 3
    return packed


@pytest.fixture
def jobs(dataset: Path, tmp_path: Path, forked_python: Path) -> Iterator[Jobs]:
    jobs = Jobs(dataset, tmp_path, forked_python, [])
    yield jobs
    for job in jobs.started:
        if job.process.poll() is None:
            job.kill()


def check(runs: list[Run]) -> None:
    """What the checkpoints carry from run to run is every clip, once in each epoch.

    A run's steps count up to the one that the next began with. Those after it were made, and their clips consumed, but
    the model that learned from them is gone: the next run makes them again.
    """
    ends = [run.start for run in runs[1:]] + [runs[-1].end]
    kept = Counter(clip for run, end in zip(runs, ends, strict=True) for clip in run.clips(run.start, end))
    assert kept == Counter((epoch, clip) for epoch in range(EPOCHS) for clip in range(CLIPS))
    made = Counter(clip for run in runs for clip in run.clips(run.start, run.end))
    lost = sum(run.end - end for run, end in zip(runs, ends, strict=True))
    assert (made != kept) == (lost > 0)
    assert len({len(rank) for rank in runs[-1].ranks}) == 1, "ranks ended after unlike numbers of steps"


def test_killed_and_stopped_on_4_then_2_then_3_ranks_then_alone(jobs: Jobs) -> None:
    options = ("--shuffle", "block")
    # A rank is killed after 5 steps, with a checkpoint after 3: torchrun ends the job.
    job = jobs.start("one", 4, *options, pause_after=5)
    job.wait_for_pause(ranks=4)
    job.kill_rank(1)
    assert job.wait() != 0
    # All are killed while the checkpoint after step 12 is being written, in the second epoch: the one after step 9
    # counts. The first epoch has 25 clips left for it, and 2 ranks x 3 clips do not divide that.
    job = jobs.start("two", 2, *options, pause_after=9, in_save=True, batch=3)
    job.wait_for_pause(ranks=1)
    job.kill()
    assert list(jobs.folder.glob("checkpoint.pt.*")) == [jobs.folder / "checkpoint.pt.part"]
    # Told to stop, as by a scheduler. The ranks have already agreed to go on after step 13: so it is after the next.
    job = jobs.start("three", 3, *options, pause_after=4)
    job.wait_for_pause(ranks=3)
    job.process.terminate()
    assert job.wait() != 0
    job = jobs.start("four", 1, *options, batch=5)
    assert job.wait() == 0

    runs = [jobs.read("one", 4), jobs.read("two", 2), jobs.read("three", 3), jobs.read("four", 1)]
    assert [(run.start, run.end) for run in runs] == [(0, 5), (3, 12), (9, 14), (14, 18)]
    check(runs)
