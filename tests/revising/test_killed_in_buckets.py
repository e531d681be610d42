"""Changes of a dataset in a bucket, killed with SIGKILL at each request that changes something, before it is done and
after: no clip is lost, and the same call ends it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import streamvid as sv
from tests.revising.conftest import CLIPS
from tests.revising.test_repair import BAD, found_bad, spoil
from tests.support.faulty_s3 import FaultyS3, faulty_s3
from tests.support.profile import by_profile

URL = "s3://bucket/set"
CALLS = {
    "repair": "sv.repair(url, videos, quarantine=quarantine, workers=1, progress=False)",
    "purge": "sv.forget(url, ['clip1', 'clip4'], purge=True)",
    "forget": "sv.forget(url, ['clip1', 'clip4'])",
    "annotate": "sv.annotate(url, pa.table({'key': ['clip1'], 'note': ['seen']}))",
    "append": "sv.pack([videos, more], url, append=True, shard_size=20_000, workers=1, progress=False)",
}
PROGRAM = """
import os, sys
import pyarrow as pa
import streamvid as sv

url, videos, quarantine, more, pid, call = sys.argv[1:]
with open(pid, "w") as file:
    file.write(str(os.getpid()))
exec(call)
"""


@pytest.fixture
def site() -> Iterator[FaultyS3]:
    with faulty_s3() as site:
        yield site


@pytest.mark.parametrize("name", [*CALLS][: by_profile(ci=2, nightly=len(CALLS))])
def test_killed_at_every_change(
    name: str, folder: Path, packed: Path, site: FaultyS3, tmp_path: Path, forked_python: Path
) -> None:
    quarantine, pid, videos = tmp_path / "q", tmp_path / "pid", packed.parent / "videos"
    more = Path(shutil.copytree(videos, tmp_path / "more"))
    for video in more.iterdir():
        video.rename(video.with_stem(f"more-{video.stem}"))
    if name == "repair":
        spoil(folder)
        assert found_bad(folder, quarantine) == set(BAD)
    site.add_folder(folder, "bucket/set")
    before = dict(site.objects)

    def run() -> int:
        given = map(str, (URL, videos, quarantine, more, pid, CALLS[name]))
        return subprocess.run([forked_python, "-c", PROGRAM, *given], check=False, timeout=120).returncode

    def sound() -> bool:
        """Whether all is there that has to be: clips that another run has repaired or forgotten may be gone."""
        dataset = sv.Dataset.open(URL)
        keys = {dataset.key(row) for row in set(range(len(dataset))) - set(dataset.forgotten.tolist())}
        return {f"clip{n}" for n in range(CLIPS)} - keys <= set(BAD) and sv.verify(URL, progress=False).ok

    for number in range(0, 800, by_profile(ci=17, nightly=1)):
        at, done = divmod(number, 2)  # the change is killed before it is done, and then after
        site.objects, site.held, site.uploads, site.changes = dict(before), {}, {}, 0
        site.fault = lambda *_, at=at, done=done: None if done or site.changes != at + 1 else "reset"
        site.before = lambda n, at=at: os.kill(int(pid.read_text()), signal.SIGKILL) if n == at else None
        code = run()
        site.before, site.fault = lambda _: None, lambda *_: None
        assert code in (0, -signal.SIGKILL)
        assert name == "repair" or sound()
        assert run() == 0
        assert sound()
        assert len(sv.Dataset.open(URL)) == CLIPS * (2 if name == "append" else 1)
        if name == "repair":
            assert found_bad(URL, tmp_path / f"after-{number}", cache_dir=tmp_path / "cache") == set()
        if code == 0:
            return
    pytest.fail("it never finished")
