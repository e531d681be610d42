"""The examples of docs/frameworks.md: stopped in the middle of an epoch, and gone on with the rest, each clip once."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.packed import pack_with_columns
from tools.clips import Recipe

ROOT = Path(__file__).parents[2]
CLIPS = 19
Sample = tuple[int, str]
"""Rank and key."""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, inline_workers: None) -> Path:
    return pack_with_columns(
        {f"c{n:02}": Recipe(width=96, height=64, gop=6, frames=6, seed=n) for n in range(CLIPS)},
        tmp_path_factory.mktemp("frameworks"),
    )


def run(*command: str) -> list[Sample]:
    """Rank and clip of all samples of epoch 0, in the order printed. Nothing is said about exceptions at exit. Where
    there is an evaluation, it is of each clip once."""
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true",
        "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Exception" not in done.stderr
    assert "Traceback" not in done.stderr
    evaluated = set(re.findall(r"'eval_evaluated': (\d+)", done.stdout))
    assert evaluated == ({str(CLIPS)} if "examples/frameworks/trainer_train.py" in command else set())
    # Two ranks write: a line's end may come behind the other's line.
    lines = [json.loads("{" + line) for line in done.stdout.replace("}", "}\n").split("{")[1:] if '"clips"' in line]
    assert {line["epoch"] for line in lines} == {0}
    return [(line["rank"], clip) for line in lines for clip in line["clips"]]


COMMANDS: dict[str, tuple[str, ...]] = {
    "lightning": ("examples/frameworks/lightning_train.py", "--devices", "2"),
    "accelerate": (*TORCHRUN, "examples/frameworks/accelerate_train.py"),
    "transformers": (*TORCHRUN, "examples/frameworks/trainer_train.py"),
    "torchdata": ("examples/frameworks/torchdata_train.py",),
}


@pytest.fixture(scope="module")
def runs(dataset: Path) -> Iterator[dict[str, Future[tuple[list[Sample], list[Sample]]]]]:
    """Of each framework that is installed, what was seen before the stop and after it. All at once: most of the time
    goes into importing them."""

    def stopped_and_resumed(framework: str) -> tuple[list[Sample], list[Sample]]:
        command = [*COMMANDS[framework], str(dataset), "--checkpoints", str(dataset.parent / framework)]
        return run(*command, "--steps", "2"), run(*command, "--epochs", "1")

    with ThreadPoolExecutor(len(COMMANDS)) as pool:
        yield {name: pool.submit(stopped_and_resumed, name) for name in COMMANDS if importlib.util.find_spec(name)}


@pytest.mark.parametrize("framework", COMMANDS)
def test_a_run_that_was_stopped_goes_on(
    runs: dict[str, Future[tuple[list[Sample], list[Sample]]]], framework: str
) -> None:
    if framework not in runs:
        pytest.skip(f"{framework} is not installed: pip install -e '.[frameworks]'")
    before, after = runs[framework].result()
    ranks = 1 if framework == "torchdata" else 2
    assert len(before) == 2 * 2 * ranks
    assert {rank for rank, _ in before} == {rank for rank, _ in after} == set(range(ranks))
    assert sorted(clip for _, clip in before + after) == [f"c{n:02}" for n in range(CLIPS)]
