"""The examples of docs/frameworks.md: stopped in the middle of an epoch, and gone on with the rest, each clip once."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.packed import pack_with_columns
from tests.support.serving import free_port
from tools.clips import Recipe

ROOT = Path(__file__).parents[2]
CLIPS = 19
Sample = tuple[int, str]
"""Rank and key."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_with_columns(
        {f"c{n:02}": Recipe(width=96, height=64, gop=6, frames=6, seed=n) for n in range(CLIPS)},
        tmp_path_factory.mktemp("frameworks"),
    )


# Both runs, each in processes forked from one that has imported the framework: that takes most of the time. If they are
# several, they have a launcher's environment. Between the runs a line of
# dashes.
_RANKS = """
import importlib, json, os, runpy, sys
importlib.import_module(sys.argv[1])
sys.executable = sys.argv[3]  # which Lightning starts rank 1 by

def rank_of_a_run():
    for size, port, arguments in json.loads(sys.argv[2]):
        ranks = []
        for rank in range(size):
            ranks.append(os.fork())
            if not ranks[-1]:
                world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
                world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                os.environ.update({name: str(value) for name, value in world.items() if size > 1})
                return arguments
        if any([os.waitpid(rank, 0)[1] for rank in ranks]):
            sys.exit("a rank has failed")
        print("---", flush=True)
    sys.exit()

sys.argv = rank_of_a_run()
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(python: Path, module: str, runs: Sequence[tuple[int, int, list[str]]]) -> list[str]:
    """What each run prints: of so many processes, with a port, of these arguments. Nothing is said about exceptions at
    exit."""
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true",
        "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    done = subprocess.run(
        [python, "-c", _RANKS, module, json.dumps(runs), python],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Exception" not in done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.split("---")


def samples(printed: str, framework: str) -> list[Sample]:
    """Rank and clip of all samples of epoch 0, in the order printed. Where there is an evaluation, it is of each clip
    once."""
    evaluated = set(re.findall(r"'eval_evaluated': (\d+)", printed))
    assert evaluated == ({str(CLIPS)} if framework == "transformers" else set())
    # Two ranks write: a line's end may come behind the other's line.
    lines = [json.loads("{" + line) for line in printed.replace("}", "}\n").split("{")[1:] if '"clips"' in line]
    assert {line["epoch"] for line in lines} == {0}
    return [(line["rank"], clip) for line in lines for clip in line["clips"]]


FRAMEWORKS = {
    "lightning": ("lightning_train.py", ["--devices", "2"], "lightning", (1, 2)),  # rank 1 of the first: by itself
    "accelerate": ("accelerate_train.py", [], "accelerate", (2, 2)),
    "transformers": ("trainer_train.py", [], "transformers.trainer", (2, 2)),
    "torchdata": ("torchdata_train.py", [], "torchdata.stateful_dataloader", (1, 1)),
}
"""The example and its arguments, what it imports, and the processes of each run."""


@pytest.fixture(scope="module")
def runs(dataset: Path, forked_python: Path) -> Iterator[dict[str, Future[tuple[list[Sample], list[Sample]]]]]:
    """Of each framework that is installed, what was seen before the stop and after it. All at once."""

    def stopped_and_resumed(framework: str) -> tuple[list[Sample], list[Sample]]:
        example, options, module, sizes = FRAMEWORKS[framework]
        common = [f"examples/frameworks/{example}", str(dataset), "--checkpoints", str(dataset.parent / framework)]
        limits = ["--steps", "2"], ["--epochs", "1"]
        runs = [(size, free_port(), common + limit + options) for size, limit in zip(sizes, limits, strict=True)]
        before, after, _ = run(forked_python, module, runs)
        return samples(before, framework), samples(after, framework)

    with ThreadPoolExecutor(len(FRAMEWORKS)) as pool:
        yield {name: pool.submit(stopped_and_resumed, name) for name in FRAMEWORKS if importlib.util.find_spec(name)}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_run_that_was_stopped_goes_on(
    runs: dict[str, Future[tuple[list[Sample], list[Sample]]]], framework: str
) -> None:
    if framework not in runs:
        pytest.skip(f"{framework} is not installed: pip install -e '.[frameworks]'")
    before, after = runs[framework].result()
    ranks = FRAMEWORKS[framework][3][1]
    assert len(before) == 2 * 2 * ranks
    assert {rank for rank, _ in before} == {rank for rank, _ in after} == set(range(ranks))
    assert sorted(clip for _, clip in before + after) == [f"c{n:02}" for n in range(CLIPS)]


# What docs/frameworks.md has of Lightning besides the example. Of each run, the epoch and number of its steps, and the
# epochs of their samples.
_LIGHTNING = """
import sys
from pathlib import Path
import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader
import streamvid as sv

dataset, folder = sys.argv[1:]
how = {"sampling": sv.Window(4), "transform": sv.Transform(resize=(32, 32), layout="TCHW", dtype="float32")}

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(3, 3)

    def training_step(self, batch, step):
        seen.append((self.current_epoch, step, *set(batch["epoch"].tolist())))
        return self.head(batch["video"].mean(dim=(1, 3, 4))).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters())

class Whole(Model):
    def __init__(self, loader):
        super().__init__()
        self.loader = loader

    def train_dataloader(self):
        return self.loader

    def on_load_checkpoint(self, checkpoint):
        self.loader.load_state_dict(checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"][0])

class OfClips(Model):
    clips = sv.ClipDataset(dataset, **how)

    def train_dataloader(self):
        self.clips.set_epoch(self.global_step)
        return DataLoader(self.clips, batch_size=8, shuffle=True)

    def on_train_epoch_start(self):
        self.clips.set_epoch(self.global_step)

def fit(name, model, loader=None, **options):
    global seen
    seen = []
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    steps = None if name.startswith("epochs") else 1
    kept = ModelCheckpoint(f"{folder}/{name}", every_n_train_steps=steps, save_last=True, enable_version_counter=False)
    last = Path(folder, name, "last.ckpt")
    L.Trainer(callbacks=[kept], **quiet, **options).fit(model, loader, ckpt_path=last if last.exists() else None)
    print(seen)

for name, batches in (("counted", {}), ("fixed", {"steps_per_epoch": 7})):
    fit(name, Model(), sv.StreamLoader(dataset, batch_size=2, **how, **batches), max_steps=3)
    fit(name, Model(), sv.StreamLoader(dataset, batch_size=4, **how, **batches), max_epochs=1)
for name in ("epochs", "steps"):  # where a checkpoint is of an epoch's end, or of its last step
    for epochs in (1, 3):
        fit(name, Model(), sv.StreamLoader(dataset, batch_size=8, **how), max_epochs=epochs)
fit("epochs of steps", Whole(sv.StreamLoader(dataset, batch_size=4, steps_per_epoch=3, **how)), max_epochs=1)
fit("epochs of steps", Whole(sv.StreamLoader(dataset, batch_size=8, steps_per_epoch=3, **how)), max_epochs=2)
fit("clips", OfClips(), max_epochs=2)
fit("clips", OfClips(), max_epochs=3)
"""


def test_lightning_counts_the_batches_of_an_epoch_and_no_epochs_of_a_clip_dataset(
    dataset: Path, forked_python: Path, tmp_path: Path
) -> None:
    if not importlib.util.find_spec("lightning"):
        pytest.skip("lightning is not installed: pip install -e '.[frameworks]'")
    done = subprocess.run(
        [forked_python, "-c", _LIGHTNING, dataset, tmp_path / "checkpoints"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, counted, fixed_first, fixed, *ends, _, whole, clips, resumed = (
        eval(line) for line in done.stdout.splitlines() if line[0] == "["
    )
    assert [step for _, step, *_ in first] == [step for _, step, *_ in fixed_first] == [0, 1, 2]
    assert [step for _, step, *_ in counted] == [3, 4]  # by len(loader), 5; the clips would fill 7
    assert "was left after len(loader) batches of 7" in done.stderr
    assert [step for _, step, *_ in fixed] == [3, 4, 5, 6]
    later = [(epoch, step, epoch) for epoch in (1, 2) for step in range(3)]
    assert ends == 2 * [[(0, step, 0) for step in range(3)], later]
    assert whole == [(1, 0, 0, 1), (1, 1, 1), (1, 2, 1)]  # the first 12 of a pass's 19 clips were in epoch 0
    assert clips == [(epoch, step, 3 * epoch) for epoch in range(2) for step in range(3)]
    assert resumed == [(2, step, 6) for step in range(3)]
