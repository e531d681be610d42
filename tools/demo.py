"""What `make demo` runs: clips, pack, verify, then two ranks that stream the dataset for two epochs.

`python -m tools.demo [--videos FOLDER] [--out demo-data]`
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tools.demo_clips import make_demo_clips

RANKS = 2
_CHECKOUT = Path(__file__).resolve().parents[1]


class StepFailedError(Exception):
    """A program that the demo ran has failed, and has said why."""


def run_demo(videos: Path | None, out: Path, console: Console) -> None:
    """Run all steps. Raises StepFailedError at the first that fails."""
    dataset = out / "dataset"
    if videos is None:
        videos = out / "videos"
        console.rule(f"Making clips in {videos}")
        make_demo_clips(videos)
        labels = ["--labels", str(videos / "labels.csv")]
    else:
        labels = []
    streamvid = [sys.executable, "-m", "streamvid.cli.main"]
    _run("Packing", [*streamvid, "pack", str(videos), str(dataset), *labels, "--overwrite"], console)
    _run("Verifying", [*streamvid, "verify", str(dataset), "--decode"], console)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    rank = [*torchrun, "--module", "tools.demo_rank", str(dataset), "--picture"]
    _run(f"Streaming on {RANKS} ranks", [*rank, str(out / "batch.png")], console)
    dali = [*rank, str(out / "batch-dali.png"), "--engine", "dali"]
    _run(f"Streaming the VP9 clips on {RANKS} ranks, with DALI from end to end", dali, console)


def _run(title: str, command: Sequence[str], console: Console) -> None:
    console.rule(title)
    console.print("$ " + " ".join(["python", *command[1:]]), style="dim", highlight=False, soft_wrap=True)
    # torchrun sets this, with a warning, where nobody else has.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    code = subprocess.run(command, cwd=_CHECKOUT, env=environment, check=False).returncode
    if code:
        raise StepFailedError(f"{title} failed with exit code {code}; what went wrong is said above.")


def main() -> int:
    """Run the demo as the command line asks."""
    parser = argparse.ArgumentParser(description="Pack videos, verify the dataset, stream it on two ranks.")
    parser.add_argument("--videos", type=Path, help="a folder of videos; without it, the demo makes its own")
    parser.add_argument("--out", type=Path, default=Path("demo-data"), help="where to write (default: %(default)s)")
    arguments = parser.parse_args()
    console = Console()
    if arguments.videos is not None and not arguments.videos.is_dir():
        console.print(f"There is no folder {arguments.videos}: give --videos a folder that holds videos.", style="red")
        return 2
    start = time.monotonic()
    try:
        run_demo(arguments.videos and arguments.videos.resolve(), arguments.out.resolve(), console)
    except StepFailedError as error:
        console.print(str(error), style="red")
        return 1
    console.print(f"Done in {time.monotonic() - start:.0f} s. The dataset is {arguments.out / 'dataset'}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
