"""The demo of `make demo`: makes clips, packs and verifies them, and streams two epochs on two ranks.

`python -m tools.demo [--videos FOLDER] [--out demo-data] [--s3 [URL]]`

With `--s3` the dataset is in a bucket: at the URL, or of a Ceph RGW that the demo starts and stops (tools/s3).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from streamvid.storage.url import is_local
from tests.support.s3_server import S3Server, s3_environment
from tests.support.serving import free_port
from tools.demo_clips import make_demo_clips

RANKS = 2
_CHECKOUT = Path(__file__).resolve().parents[1]
_S3 = _CHECKOUT / "tools" / "s3"


class StepFailedError(Exception):
    """A program that the demo ran has failed, and has said why."""


def run_demo(videos: Path | None, out: Path, dataset: str, console: Console) -> None:
    """Run all steps. Raises StepFailedError at the first that fails."""
    replace = ["--overwrite"] if is_local(dataset) else []  # nothing of a bucket is removed
    if videos is None:
        videos = out / "videos"
        console.rule(f"Making clips in {videos}")
        make_demo_clips(videos)
        labels = ["--labels", str(videos / "labels.csv")]
    else:
        labels = []
    streamvid = [sys.executable, "-m", "streamvid"]
    _run("Packing", [*streamvid, "pack", str(videos), dataset, *labels, *replace], console)
    _run("Verifying", [*streamvid, "verify", dataset, "--decode"], console)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    rank = [*torchrun, "--module", "tools.demo_rank", dataset, "--page"]
    _run(f"Streaming on {RANKS} ranks", [*rank, str(out / "batch.html")], console)
    dali = [*rank, str(out / "batch-dali.html"), "--engine", "dali"]
    _run(f"Streaming the VP9 clips on {RANKS} ranks, with DALI from end to end", dali, console)


@contextlib.contextmanager
def ceph(console: Console) -> Iterator[str]:
    """A bucket of a Ceph RGW of its own, reached by the environment that is set meanwhile.

    Raises:
        StepFailedError: it is not installed, and cannot be, or does not start.
    """
    console.rule("Starting a Ceph RGW")
    with contextlib.ExitStack() as stack:
        # Not below demo-data: the paths of Ceph's sockets must be short.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="streamvid-demo-"))
        port = str(free_port())
        environment = {**os.environ, "STREAMVID_S3_PORT": port}
        down = [str(_S3 / "down.sh"), f"{folder}/ceph"]
        stack.callback(lambda: subprocess.run(down, stderr=subprocess.DEVNULL, check=False))
        for command in ([str(_S3 / "install.sh")], [str(_S3 / "up.sh"), f"{folder}/ceph", "memstore"]):
            if subprocess.run(command, env=environment, check=False).returncode:
                raise StepFailedError("There is no Ceph: see above, or name a bucket of yours (BUCKET=s3://…).")
        server = S3Server(f"http://127.0.0.1:{port}")
        server.filesystem().call_s3("create_bucket", Bucket="demo")
        stack.enter_context(s3_environment(server))
        yield "s3://demo/dataset"


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
    parser.add_argument(
        "--s3",
        nargs="?",
        const="",
        metavar="URL",
        help="pack to this prefix; without it, to a Ceph of its own",
    )
    arguments = parser.parse_args()
    if arguments.s3 and "://" not in arguments.s3:
        parser.error(f"--s3 {arguments.s3} is no URL: give s3://BUCKET/PREFIX, or leave it out")
    console = Console()
    if arguments.videos is not None and not arguments.videos.is_dir():
        console.print(f"There is no folder {arguments.videos}: give --videos a folder that holds videos.", style="red")
        return 2
    start = time.monotonic()
    out: Path = arguments.out.resolve()
    try:
        with contextlib.ExitStack() as stack:
            dataset = str(out / "dataset")
            if arguments.s3 is not None:
                out.mkdir(parents=True, exist_ok=True)
                os.environ.setdefault("XDG_CACHE_HOME", str(out / "cache"))
                dataset = arguments.s3 or stack.enter_context(ceph(console))
            run_demo(arguments.videos and arguments.videos.resolve(), out, dataset, console)
    except StepFailedError as error:
        console.print(str(error), style="red")
        return 1
    console.print(
        f"Done in {time.monotonic() - start:.0f} s. The dataset {'is' if arguments.s3 != '' else 'was'} {dataset}."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
