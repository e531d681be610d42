"""Several views of a clip, the user's own functions, and all of it in the loader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamvid as sv
from streamvid.dataset.dataset import Dataset
from streamvid.errors import InputError
from streamvid.loader.stream_loader import StreamLoader
from streamvid.packing.options import PackOptions
from streamvid.transform.draw import DRAWS
from streamvid.transform.output_size import output_sizes
from streamvid.transform.spec import Transform, Views
from tests.support.batches import assert_same
from tests.support.packed import pack_recipes
from tests.support.views import clip, draws, torch_batches, video
from tests.transform.test_params import EVERYTHING, RAW
from tools.clips import Recipe, read_frame_number

GLOBAL = Transform(random_resized_crop=(0.4, 1.0), crop=(48, 40), horizontal_flip=0.5, brightness=0.3, dtype="float16")
LOCAL = Transform(random_resized_crop=(0.05, 0.4), crop=24, horizontal_flip=0.5, blur=0.5, layout="TCHW")


def test_every_view_is_what_it_is_alone_with_its_own_draws() -> None:
    views = Views({"global": GLOBAL, "local": LOCAL, "plain": Transform(resize=(20, 30), **RAW)})
    assert views.num_random == 3 * DRAWS
    batch = [replace(clip(60 + n, 80, seed=n, rotation=90 * n), random=draws(n, 3)) for n in range(4)]
    (got,) = torch_batches(views, batch)
    assert list(got) == ["global", "local", "plain", "mask", "pts", "label", "clip", "valid", "epoch"]
    assert got["global"].shape == (4, 3, 3, 48, 40)
    assert got["global"].dtype == torch.float16
    assert got["local"].shape == (4, 3, 3, 24, 24)
    for number, (name, transform) in enumerate(views.transforms.items()):
        alone = [replace(one, random=one.random[number * DRAWS : (number + 1) * DRAWS]) for one in batch]
        np.testing.assert_array_equal(got[name].numpy(), video(transform, alone))


def test_two_views_with_one_transform_differ() -> None:
    (got,) = torch_batches(Views({"a": LOCAL, "b": LOCAL}), [replace(clip(60, 80), random=draws(0, 2))])
    assert not torch.equal(got["a"], got["b"])


@pytest.mark.parametrize(
    "views",
    [{}, [], None, {"a": 1}, {"mask": LOCAL}, {"key": LOCAL}, {1: LOCAL}, {"a b": LOCAL}, {"": LOCAL}, {"a.b": LOCAL}],
)
def test_views_that_cannot_be(views: Any) -> None:
    with pytest.raises(InputError) as error:
        Views(views)
    assert "\n" not in str(error.value)


def test_the_view_that_does_not_fit_is_named() -> None:
    heights, widths = np.array([60, 80]), np.array([80, 60])
    good = Views({"one": Transform(crop=30), "two": Transform(resize=(5, 6))})
    assert output_sizes(good, heights, widths, ["a", "b"].__getitem__) == {"one": (30, 30), "two": (5, 6)}
    assert output_sizes(Transform(crop=30), heights, widths, ["a", "b"].__getitem__) == {"video": (30, 30)}
    with pytest.raises(InputError, match=r"view 'two'.*different sizes"):
        output_sizes(Views({"one": Transform(crop=30), "two": Transform()}), heights, widths, ["a", "b"].__getitem__)


# The user's part of the graph.


def test_a_function_in_the_graph() -> None:
    """After colours and flips, on the slots in their order, and before blanks and normalising."""
    from nvidia.dali import fn, types

    def invert(frames: Any) -> Any:
        return fn.cast(255 - frames, dtype=types.UINT8)

    transform = Transform(**EVERYTHING, layout="THWC")
    noise = clip(60, 80, gather=[2, 0, -1, 0])
    got = video(replace(transform, dali=invert), [noise])
    wanted = 255 - video(replace(transform, dtype="uint8"), [noise])
    wanted[:, 2] = 0
    np.testing.assert_allclose(got, wanted / 255, atol=1e-6)
    # It sees flipped frames, although normalising could have flipped them later.
    flipped = replace(clip(8, 9), random=np.zeros(DRAWS))
    left = Transform(horizontal_flip=0.5, dali=lambda frames: frames[:, :, :4], **RAW)
    np.testing.assert_array_equal(video(left, [flipped])[0], flipped.frames[:, :, ::-1][:, :, :4])
    np.testing.assert_allclose(
        video(replace(left, dtype="float32"), [flipped])[0], flipped.frames[:, :, ::-1][:, :, :4] / 255, atol=1e-6
    )


def test_a_function_in_the_graph_that_breaks_the_batch() -> None:
    from nvidia.dali import fn, types

    for function, words in (
        (lambda frames: frames[:2], "one image of three channels for each of 3 frames"),
        (lambda frames: frames[:, :, :, :1], "one image of three channels"),
        (lambda frames: fn.cast(frames, dtype=types.FLOAT), "must return uint8"),
        (lambda frames: None, "one DALI node"),
        (lambda frames: (frames, frames), "one DALI node"),
    ):
        with pytest.raises(InputError, match=words) as error:
            video(Transform(dali=function, **RAW), [clip(8, 9)])
        assert "\n" not in str(error.value)


# In the loader.

BASE = Recipe(width=96, height=64, gop=12)
RECIPES = {
    "a.mp4": replace(BASE, frames=40),
    "b.mp4": replace(BASE, frames=3, seed=1),  # padded, whatever is sampled
    "c.webm": replace(BASE, codec="vp9", container="webm", frames=30, seed=2),
    "d.mp4": replace(BASE, codec="hevc", frames=5, seed=3),
    "e.mp4": replace(BASE, frames=33, seed=4, jitter=3),
    "f.mp4": replace(BASE, frames=1, seed=5),
    "g.mp4": replace(BASE, frames=25, seed=6),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    labels = [10 * n for n in range(len(RECIPES))]
    return pack_recipes(RECIPES, tmp_path_factory.mktemp("views"), {"label": labels}, options=PackOptions("any"))


def loader(path: Path, **options: Any) -> StreamLoader:
    given = {"batch_size": 3, "sampling": sv.Window(6, fps=15), "num_threads": 2, "device": "cpu", "seed": 3, **options}
    return StreamLoader(path, **given)


def epochs(path: Path, count: int = 2, **options: Any) -> list[dict[str, Any]]:
    with loader(path, **options) as batches:
        return [batch for _ in range(count) for batch in batches]


def test_everything_on_twice(path: Path) -> None:
    from nvidia.dali import fn

    transform = {
        "a": Transform(**EVERYTHING, mean=(0.4, 0.5, 0.6), dtype="float16"),
        "b": Transform(
            random_short_side=(60, 90), crop=56, interpolation="bicubic", rotate=10, horizontal_flip=0.5, dali=fn.copy
        ),
    }
    options = {
        "transform": transform,
        "sampling": sv.Window(6, fps=15, pad="constant"),
        "batch_fn": lambda batch: {**batch, "more": batch["a"].sum()},
    }
    first, second = epochs(path, **options), epochs(path, **{**options, "num_threads": 1})
    assert len(first) == 6
    assert_same(first, second)
    # A clip looks the same whatever batch and rank it is in, and otherwise in another epoch.
    looks = [{key: frames for batch in first[:3] for key, frames in zip(batch["key"], batch["a"], strict=True)}]
    looks.append({key: frames for batch in first[3:] for key, frames in zip(batch["key"], batch["a"], strict=True)})
    assert len(looks[0]) == len(looks[1]) == len(RECIPES)
    assert not any(torch.equal(looks[0][key], looks[1][key]) for key in looks[0])
    for rank in (0, 1):
        for batch in epochs(path, 1, **options, rank=rank, world_size=2):
            for key, frames in zip(batch["key"], batch["a"], strict=True):
                assert torch.equal(frames, looks[0][key])


@pytest.mark.parametrize("pad", ["edge", "constant", "reflect_101"])
def test_nothing_parts_from_its_clip(path: Path, pad: Any) -> None:
    """Labels, times and masks beside the frames they belong to, in a plain view and in an augmented one."""
    dataset = Dataset.open(path)
    names = list(RECIPES)
    views = {"plain": Transform(**RAW), "marked": Transform(crop=64, brightness=(0.5, 0.5), **RAW)}
    seen: list[str] = []
    got = epochs(path, transform=views, sampling=sv.Window(6, fps=15, pad=pad))
    for batch in got:
        for n, row in enumerate(batch["clip"].tolist()):
            name = dataset.clips.source[row]
            recipe, times = RECIPES[name], [float(t) for t in RECIPES[name].shown_at()]
            assert batch["label"][n] == names.index(name) * 10
            assert batch["key"][n] == dataset.key(row)
            for slot, at in enumerate(batch["pts"][n].tolist()):
                picture, marked = batch["plain"][n, slot].numpy(), batch["marked"][n, slot].numpy()
                if at == -1:
                    assert pad == "constant"
                    assert not batch["mask"][n, slot]
                    assert not picture.any()
                    assert not marked.any()
                    continue
                frame = int(np.argmin([abs(at - t) for t in times]))
                assert abs(at - times[frame]) < 0.0011
                assert read_frame_number(picture) == recipe.shown()[frame]
                # The other view shows the same frame: one of its crops, at half the brightness.
                lefts = range(96 - 64 + 1)
                differences = [np.abs(picture[:, left : left + 64] / 2 - marked.astype(float)).max() for left in lefts]
                assert min(differences) <= 1
            assert batch["mask"][n, 0] or pad == "constant"
            seen.append(name)
    assert sorted(seen) == sorted(names * 2)
    assert not all(batch["mask"].all() for batch in got)


def test_a_resumed_run_goes_on_with_the_same_augmentation(path: Path) -> None:
    """Bit for bit on as many ranks; clip by clip on another number of them."""
    options: dict[str, Any] = {"transform": {"a": GLOBAL, "b": LOCAL, "plain": Transform(**RAW)}, "batch_size": 2}
    with loader(path, **options) as batches:
        run = iter(batches)
        before = [next(run), next(run)]
        state = batches.state_dict()
        rest = list(run)
    assert len(rest) == 2
    with loader(path, **options) as batches:
        batches.load_state_dict(state)
        assert_same(list(batches), rest)
    looks = {key: [batch[name][n] for name in "ab"] for batch in rest for n, key in enumerate(batch["key"])}
    seen = [key for batch in before for key in batch["key"]]
    for rank in (0, 1):
        with loader(path, **{**options, "batch_size": 1, "rank": rank, "world_size": 2}) as batches:
            batches.load_state_dict(state)
            for batch in batches:
                for n, (key, valid) in enumerate(zip(batch["key"], batch["valid"].tolist(), strict=True)):
                    if valid:
                        seen.append(key)
                        assert all(
                            torch.equal(batch[name][n], look) for name, look in zip("ab", looks[key], strict=True)
                        )
                        assert (
                            batch["label"][n]
                            == list(RECIPES).index(f"{batches.dataset.clips.source[batch['clip'][n]]}") * 10
                        )
    assert len(seen) == len(set(seen)) == len(RECIPES)


def test_views_of_the_loader(path: Path) -> None:
    for transform in ({"a": GLOBAL, "b": LOCAL}, Views({"a": GLOBAL, "b": LOCAL})):
        (batch, *_) = epochs(path, 1, transform=transform)
        assert "video" not in batch
        assert (batch["a"].shape[1:], batch["b"].shape[1:]) == ((3, 6, 48, 40), (6, 3, 24, 24))
    with pytest.raises(InputError, match="view 'b'"):
        loader(path, transform={"a": GLOBAL, "b": Transform(crop=65)})
    for wrong in ({}, {"a": 1}, [GLOBAL], "flip", {"label": GLOBAL}):
        with pytest.raises(InputError) as error:
            loader(path, transform=wrong)
        assert "\n" not in str(error.value)


def test_a_function_after_it(path: Path) -> None:
    seen: list[list[str]] = []

    def after(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append(batch["key"])
        return {"mean": batch["video"].mean(), "label": batch["label"]}

    got = epochs(path, 1, transform=Transform(crop=32), batch_fn=after)
    plain = epochs(path, 1, transform=Transform(crop=32))
    assert seen == [batch["key"] for batch in plain]
    for one, two in zip(got, plain, strict=True):
        assert set(one) == {"mean", "label"}
        assert torch.equal(one["mean"], two["video"].mean())
    with pytest.raises(InputError, match="batch_fn"):
        loader(path, batch_fn=3)

    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        epochs(path, 1, transform=Transform(crop=32), batch_fn=fail)
