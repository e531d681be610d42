"""Several ranks, each on a GPU of its own: disjoint clips, equal steps, and a run that goes on with fewer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.support.packed import pack_recipes
from tools.clips import Recipe

CLIPS = 22
RANK = """
import json, os, sys
import torch
import torch.distributed as dist
import streamvid as sv

dataset, folder, state, steps = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
size = sv.Transform(resize=64, crop=56, horizontal_flip=0.5)
loader = sv.StreamLoader(dataset, batch_size=2, sampling=sv.Window(4), transform=size)
if state != "-":
    loader.load_state_dict(json.load(open(state)))
made = 0
with open(f"{folder}/{dist.get_rank()}.jsonl", "w") as log:
    while loader.epoch < 2 and made < steps:
        for batch in loader:
            assert batch["video"].device.index == int(os.environ["LOCAL_RANK"])
            total = batch["video"].sum()
            dist.all_reduce(total)  # hangs if one rank makes fewer steps
            made += 1
            standing = loader.state_dict()
            rows = list(zip(batch["epoch"].tolist(), batch["clip"].tolist(), batch["valid"].tolist()))
            print(json.dumps({"rows": rows, "sum": batch["video"].sum(dim=(1, 2, 3, 4)).tolist()}), file=log)
            if made == steps:
                break
if dist.get_rank() == 0:
    json.dump(standing, open(f"{folder}/state.json", "w"))
dist.destroy_process_group()
"""


def run(ranks: int, dataset: Path, folder: Path, state: str, steps: int) -> list[tuple[int, int]]:
    """(epoch, clip) of all that the ranks were handed."""
    folder.mkdir()
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        "--no-python",
    ]
    command += [sys.executable, "-c", RANK, str(dataset), str(folder), state, str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    logs = [[json.loads(line) for line in (folder / f"{rank}.jsonl").open()] for rank in range(ranks)]
    assert len({len(log) for log in logs}) == 1
    return [(epoch, clip) for log in logs for step in log for epoch, clip, valid in step["rows"] if valid]


@pytest.mark.full
@pytest.mark.parametrize(("first", "second"), [(2, 1), (2, 2), (4, 2), (2, 4)])
def test_ranks_on_gpus_of_their_own(first: int, second: int, tmp_path: Path) -> None:
    if torch.cuda.device_count() < max(first, second):
        pytest.skip(f"needs {max(first, second)} GPUs")
    recipes = {
        f"{n:02}": Recipe(codec="hevc" if n % 3 == 0 else "h264", height=192, frames=12 + n, seed=n)
        for n in range(CLIPS)
    }
    dataset = pack_recipes(recipes, tmp_path)
    seen = run(first, dataset, tmp_path / "one", "-", 3)
    seen += run(second, dataset, tmp_path / "two", str(tmp_path / "one" / "state.json"), 10**6)
    assert Counter(seen) == Counter({(epoch, clip): 1 for epoch in range(2) for clip in range(CLIPS)})
