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
