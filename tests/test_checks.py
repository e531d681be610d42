"""NumPy's numbers as options: they give the same options, hashes and JSON states as Python's."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamvid as sv
from streamvid.checks import did_you_mean, fraction, is_real, plain
from streamvid.errors import InputError
from streamvid.packing.cut_list import check_cutting
from streamvid.storage.retry import Retry
from streamvid.storage.url import given_path, given_paths
from tests.support.packed import digests, make_videos
from tools.clips import Recipe


def in_numpy(value: Any) -> Any:
    """The same value with NumPy's scalars, in lists and tuples, too."""
    if isinstance(value, dict):
        return {name: in_numpy(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(in_numpy(item) for item in value)
    kinds: dict[type, Any] = {int: np.int64, float: np.float64, bool: np.bool_, str: np.str_}
    return kinds[type(value)](value) if type(value) in kinds else value


def test_plain_converts_numpy_scalars_and_changes_nothing_else() -> None:
    for value in (
        1,
        2.5,
        "a",
        None,
        [1, "b"],
        (1, (2, 3)),
        {"a": np.int64(1)},
        np.arange(3),
        np.array(3),
        torch.tensor(3),
    ):
        assert plain(value) is value
    assert repr(plain((np.int64(1), [np.float32(0.5), (np.bool_(True), np.str_("s"))]))) == "(1, [0.5, (True, 's')])"


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (sv.Window, {"frames": 4, "stride": 2, "windows": 3, "start": "even", "jitter": 1}),
        (sv.Window, {"frames": 4, "fps": 7.5}),
        (sv.Window, {"frames": 4, "span": (1, 2.5)}),
        (sv.TiledWindows, {"frames": 4, "step": 3, "stride": 2}),
        (sv.MultiRate, {"parts": [(4, 2.5), (2, 10)]}),
        (sv.Uniform, {"frames": 4}),
        (sv.Keyframes, {"frames": 4}),
        (sv.RandomFrames, {"frames": 4}),
        (sv.Frames, {"numbers": [1, 5]}),
        (sv.ByClip, {"num_frames": 4, "frames": "times"}),
        (sv.Transform, {"resize": 40, "crop": (24, 32), "horizontal_flip": 0.5, "mean": [0.4, 0.5, 0.6], "std": 0.2}),
        (sv.Transform, {"random_short_side": (40, 50), "crop": 32, "rotate": 5, "brightness": (0.5, 2)}),
        (sv.FixedLength, {"length": 12, "unit": "frames"}),
        (sv.Scenes, {"min_length": 0.5}),
        (sv.TranscodeOptions, {"gop": 8, "crf": 30, "max_fps": 12.5, "short_side": 64}),
    ],
)  # fmt: skip
def test_options_in_numpy_are_those_in_python(kind: Any, options: dict[str, Any]) -> None:
    assert repr(kind(**in_numpy(options))) == repr(kind(**options))


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipes = {f"{n}": Recipe(width=64, height=64, frames=12, gop=4, seed=n) for n in range(5)}
    return make_videos(tmp_path_factory.mktemp("videos"), recipes)


def test_pack_verify_and_stream_with_numpys_numbers(videos: Path, tmp_path: Path) -> None:
    numbers: dict[str, Any] = {"shard_size": 20_000, "workers": 2, "progress": False}
    for name, change in (("python", lambda value: value), ("numpy", in_numpy)):
        cutting = sv.FixedLength(**change({"length": 4, "unit": "frames"}))
        sv.pack([videos], tmp_path / name, name="same", options=sv.PackOptions(cutting=cutting), **change(numbers))
    assert digests(tmp_path / "python") == digests(tmp_path / "numpy")
    assert sv.verify(tmp_path / "numpy", **in_numpy({"workers": 1, "seed": 3, "sample": 0.5, "progress": False})).ok
    options = {
        "batch_size": 2, "seed": 3, "steps_per_epoch": 4, "rank": 1, "world_size": 2, "num_threads": 1,
        "group_by_size": 2, "shuffle": "block", "drop_last": True, "cache_bytes": 1 << 30,
    }  # fmt: skip
    states, seen = [], []
    for change in (lambda value: value, in_numpy):
        sampling = sv.Window(**change({"frames": 2, "stride": 2}))
        with sv.StreamLoader(tmp_path / "python", sampling=sampling, device="cpu", **change(options)) as loader:
            loader.set_epoch(change(2))
            states.append(json.dumps(loader.state_dict()))
            batches = iter(loader)
            seen.append(next(batches)["clip"].tolist())
            states.append(json.dumps(loader.state_dict()))
            loader.load_state_dict(in_numpy(loader.state_dict()))
            states.append(json.dumps(loader.state_dict()))
    assert states[:3] == states[3:]
    assert states[1] == states[2]
    assert seen[0] == seen[1]


def test_random_access_with_numpys_numbers(videos: Path, tmp_path: Path) -> None:
    sv.pack([videos], tmp_path / "set", progress=False)
    clips = sv.ClipDataset(tmp_path / "set", sampling=sv.Window(2), seed=np.uint32(4))  # type: ignore[arg-type]
    clips.set_epoch(np.int16(1))  # type: ignore[arg-type]
    assert clips[np.int64(-1)]["key"] == clips.get(np.int32(4), frames=np.arange(2))["key"] == "4"  # type: ignore[arg-type]
    options: dict[str, Any] = in_numpy({"batch_size": 2, "num_workers": 0, "num_threads": 1, "drop_last": True})
    with sv.GpuDataLoader(clips, device="cpu", **options) as loader:
        loader.set_epoch(np.int64(3))  # type: ignore[arg-type]
        assert len(loader) == len(list(loader)) == 2


@pytest.mark.parametrize("wrong", [np.bool_(True), np.float64(2), np.array(2), torch.tensor(2), "2", True])
def test_a_batch_size_or_seed_that_is_no_whole_number_is_refused(wrong: Any, videos: Path, tmp_path: Path) -> None:
    sv.pack([videos], tmp_path / "set", progress=False)
    for options in ({"batch_size": wrong}, {"batch_size": 1, "seed": wrong}):
        with pytest.raises(sv.InputError, match="whole number"):
            sv.StreamLoader(tmp_path / "set", sampling=sv.Window(2), **options)


@pytest.mark.parametrize("text", ["1e99999999999999", "1E-99999999999", "1e0099999999", "1e1_0_0_0_0_0_0_0_0", "x", ""])
def test_texts_that_are_no_fraction_or_a_huge_one_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"out of range|Invalid literal"):
        fraction(text)


def test_numbers_as_text() -> None:
    assert [fraction(text) for text in ("30000/1001", "29.97", "1e3", "2E-3")] == [
        Fraction(30000, 1001), Fraction(2997, 100), 1000, Fraction(1, 500)
    ]  # fmt: skip


HUGE = 10**400
"""More than a float can be."""


def test_numbers_that_no_float_has_are_not_real() -> None:
    assert all(map(is_real, (10**300, Fraction(1, HUGE), np.float32(1))))
    assert not any(map(is_real, (HUGE, -HUGE, Fraction(HUGE), float("nan"), np.float32("inf"), True, "1", np.array(1))))


MISUSES: list[tuple[Callable[[], object], str]] = [
    (lambda: Retry.of(HUGE), "retry_for must be a number of seconds"),
    (lambda: sv.Transform(mean=HUGE), "mean"),
    (lambda: sv.Transform(std=[1, HUGE, 1]), "std"),
    (lambda: given_path("a\0b", "roots"), r"roots 'a.*b' has the character '\\x00', which no path can have: remove it"),
    (lambda: given_path("a\ud800b", "roots"), r"roots 'a.*b' has the character '\\ud800', which no path can have"),
    (lambda: sv.TranscodeOptions(codec=np.array([1, 2])), "cannot transcode to array"),  # type: ignore[arg-type]
    (lambda: sv.TranscodeOptions(gop=None), r"TranscodeOptions\(gop\) must be a whole number; it is None"),  # type: ignore[arg-type]
    (lambda: sv.PackOptions(decode=np.array([])), "cannot decode array"),  # type: ignore[arg-type]
    (lambda: sv.PackOptions(track="first"), "a video track of number 'first': give 0"),  # type: ignore[arg-type]
    (lambda: sv.PackOptions(in_place="table"), r"PackOptions\(in_place\) must be .*did you mean 'tables'"),  # type: ignore[arg-type]
    (lambda: given_paths(np.array(2), "inputs"), "inputs must be a path or URL or a list of them; it is array"),
    (lambda: sv.verify("ds", sample="1%"), "a sample of '1%' is no share of the clips: give one above 0"),  # type: ignore[arg-type]
    (lambda: sv.index("in", "to", camera=7), "camera must be a list of names of cameras; it is 7"),  # type: ignore[arg-type]
    (lambda: sv.forget("ds", keys=["a"], purge="no"), "purge must be True or False; it is 'no'"),  # type: ignore[arg-type]
    (lambda: sv.split("ds", "to", column="fold", copy=1), "copy must be True or False; it is 1"),  # type: ignore[arg-type]
    (lambda: sv.merge(7, "to"), "datasets must be a list of paths, URLs or datasets; it is 7"),  # type: ignore[arg-type]
    (lambda: sv.merge(np.array([]), "to"), "datasets must be a list of paths"),  # type: ignore[arg-type]
    (lambda: sv.reshard("ds", "to", shard_size=10**30), "shard_size must be a whole number from 1 to"),
    (lambda: sv.reshard("ds", "to", seed="x"), "seed must be a whole number of at least 0; it is 'x'"),  # type: ignore[arg-type]
    (lambda: sv.split("ds", "to", column=0), "column must be the name of a column; it is 0"),  # type: ignore[arg-type]
    (
        lambda: check_cutting(sv.PackOptions(cutting=sv.FixedLength(Fraction(1, 3), "frames")), listed=False),  # type: ignore[arg-type]
        "clips of 0.333333 frames: give a whole number",
    ),
]


@pytest.mark.parametrize(("call", "said"), MISUSES)
def test_invalid_options_are_refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda wrong: sv.Window(wrong),
        lambda wrong: sv.Window(4, start=wrong),
        lambda wrong: sv.Transform(random_crop=wrong),
        lambda wrong: sv.StreamLoader("ds", batch_size=wrong),
    ],
)
def test_data_in_the_place_of_an_option_makes_a_short_line(call: Callable[[Any], object]) -> None:
    for wrong in (torch.zeros(3, 3), np.zeros((3, 3)), list(range(100_000)), "x" * 100_000):
        with pytest.raises(InputError) as error:
            call(wrong)
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("function", "given", "said"),
    [
        (sv.StreamLoader, ("ds", 2), "StreamLoader takes dataset by position; name the others, such as batch_size="),
        (sv.pack, ("videos", "ds", "labels.csv"), "pack takes inputs, destination by position; .* such as labels="),
        (sv.Frames, ([0], "edge"), "Frames takes numbers by position; name the others, such as pad="),
    ],
)
def test_an_argument_without_its_keyword(function: Any, given: tuple[object, ...], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        function(*given)


def test_a_keyword_of_pytorchs_loader() -> None:
    loader: Any = sv.GpuDataLoader
    with pytest.raises(TypeError, match=r"no argument 'collate_fn'; .*: change it in the loop"):
        loader(None, collate_fn=list)


def test_what_was_meant() -> None:
    assert did_you_mean("h265", ("h264", "hevc")) == did_you_mean("HEVC", ("h264", "hevc")) == "did you mean 'hevc'?"
    assert did_you_mean("h26", ("h264", "hevc")) == "did you mean 'h264'?"
    assert did_you_mean("list", ("--limit", "lists")) == "did you mean 'lists'?"  # another name only of what there is
    assert did_you_mean("ncthw", ("THWC", "CTHW")) == "did you mean 'CTHW'?"
    assert did_you_mean(5, ("h264",)) == did_you_mean("zzz", ("h264",)) == did_you_mean("", ("h264",)) == ""
