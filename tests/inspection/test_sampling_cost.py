"""The predicted requests of an epoch equal those of a run, as counted by the server."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import streamvid as sv
from streamvid.cli.main import main
from streamvid.dataset.dataset import Dataset
from streamvid.errors import InputError
from streamvid.inspection.sampling_cost import epoch_cost, sampling_cost
from streamvid.loader.calls import sampler_of
from streamvid.packing.pack import pack
from tests.support.clips import write
from tests.support.faulty_s3 import FaultyS3
from tests.support.packed import without
from tools.clips import Recipe

CLIPS = 72


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of 60 frames with a key frame every 10, in shards of some twenty."""
    folder = tmp_path_factory.mktemp("cost")
    (folder / "videos").mkdir()
    for n in range(CLIPS):
        path = folder / "videos" / f"{n:02}.mp4"
        if n < 6:
            write(Recipe(frames=60, gop=10, seed=n, width=160, height=96), path)
        else:
            os.link(folder / "videos" / f"{n % 6:02}.mp4", path)
    size = sum(path.stat().st_size for path in (folder / "videos").iterdir())
    pack([folder / "videos"], folder / "set", shard_size=size // 4, progress=False)
    return folder / "set"


def asked(site: FaultyS3) -> tuple[int, int]:
    """Requests for shards' files, and the bytes of their answers."""
    count = size = 0
    for method, key, wanted in site.requests:
        if key.endswith((".tar", ".packets")):
            count += 1
            if method == "GET":
                first, last = wanted.removeprefix("bytes=").split("-")
                size += int(last) - int(first) + 1
    return count, size


@pytest.mark.parametrize(
    ("sampling", "fetch"),
    [
        (sv.Window(2), "ranges"),
        (sv.Frames([0, 55]), "ranges"),
        (sv.TiledWindows(20), "ranges"),
        (sv.TiledWindows(20), "shards"),
    ],
    ids=str,
)
def test_predicted_bytes_and_requests_are_those_of_a_loader(
    s3: FaultyS3, tmp_path: Path, fetch: Any, sampling: Any
) -> None:
    cost = epoch_cost(sv.Dataset.open("s3://bucket/set"), sampling, prices=(20.0, 5.0))
    predicted = cost.ranges if fetch == "ranges" else cost.shards
    options: dict[str, Any] = {"batch_size": 64, "device": "cpu", "num_threads": 1, "cache_dir": tmp_path}
    with sv.StreamLoader("s3://bucket/set", sampling=sampling, fetch=fetch, **options) as loader:
        s3.requests.clear()
        samples = sum(len(batch["key"]) for batch in loader)
        stats = loader.stats()
    count, size = asked(s3)
    assert samples == cost.samples
    # A hedge may be given up before it is sent: two are free, and 2 % more.
    assert 0 <= stats.requests - count <= 2 + count // 50
    assert 0 <= stats.bytes_fetched - size <= 0.1 * size
    assert cost.money is not None
    assert cost.money[fetch == "shards"] == pytest.approx(20 * predicted.bytes / 1e9 + 5 * predicted.requests / 1e3)
    if isinstance(sampling, sv.TiledWindows) and fetch == "ranges":
        return  # windows of one clip share indexes and, in the cache, blocks
    assert predicted.bytes == pytest.approx(size, rel=0.15)
    assert predicted.requests == pytest.approx(count, rel=0.25)


def test_info_shows_the_cost_of_a_sampling(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["info", str(packed), "--sampling", "Window(2, stride=3)"]
    assert main([*arguments, "--cost", "20", "5", "--json"]) == 0
    epoch = json.loads(capsys.readouterr().out)["epoch"]
    cost = epoch_cost(sv.Dataset.open(packed), sv.Window(2, stride=3), prices=(20.0, 5.0))
    assert epoch["samples"] == CLIPS
    assert (epoch["ranges"]["bytes"], epoch["money"]) == (cost.ranges.bytes, list(cost.money or ()))
    assert main([*arguments, "--cost"]) == 0
    said = capsys.readouterr().out
    assert "byte ranges: " in said
    assert "at the prices" not in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sampling", "Windoww(2)"], "did you mean 'Window'"),
        (["--sampling", "__import__('os').system('true')"], "--sampling knows no"),
        (["--sampling", "Fraction(1, 2)"], "must be a frame sampler"),
        (["--sampling", "Window(2, fps=Fraction(1, 0))"], "must be a whole number of at least 1"),
        (["--sampling", "Window(2, fsp=3)"], "Window"),
        (["--sampling", "Window"], "--sampling: "),
        (["--sampling", "Window(-1)"], "frames"),
        (["--sampling", "Window(2, fps=2, stride=2)"], "not stride and fps together"),
        (["--sampling", "Window(" + "(" * 9999], "as in Python"),
        (["--cost"], "is of a sampling"),
        (["--sampling", "All()", "--cost", "1"], "two prices"),
        (["--sampling", "All()", "--cost", "1", "-3"], "two prices"),
        (["--sampling", "All()", "--cost", "1", "nan"], "two prices"),
    ],
)
def test_wrong_samplings_and_prices_are_errors_of_info(
    packed: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", str(packed), *arguments]) != 0
    captured = capsys.readouterr()
    assert said in captured.err.replace("\n", " ")
    assert "Traceback" not in captured.err


def test_samplings_as_text() -> None:
    for sampler in (
        sv.Window(16, fps=8),
        sv.MultiRate([(8, 1.0), (16, 2.0)]),
        sv.Window(16, fps=Fraction(30000, 1001)),
        sv.MultiRate([(8, Fraction(1, 3)), (16, 2)]),
        sv.Frames([0, 5], pad="constant"),
        sv.Window(3, span=(0.5, 2), start="even", windows=2),
    ):
        assert sampler_of(repr(sampler)) == sampler


def test_of_clips_that_are_all_forgotten(packed: Path) -> None:
    forgotten = without(Dataset.open(packed), *range(CLIPS))
    with pytest.raises(InputError, match="set are forgotten: there is none to sample"):
        sampling_cost(forgotten, sampler_of("Window(4)"))
