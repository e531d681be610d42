"""Transforms applied at once: what a loader gives of the same clip with the same draw, on clips and images."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamvid as sv
from streamvid.errors import InputError
from tests.support.images import picture, png_of
from tests.support.packed import pack_recipes
from tools.clips import Recipe

TRANSFORMS = {
    "plain": sv.Transform(),
    "eval": sv.Transform(resize=40, crop=32, random_crop=False, mean=0.5, std=0.25, layout="TCHW"),
    "train": sv.Transform(random_resized_crop=(0.2, 1.0), crop=(24, 32), horizontal_flip=0.5, dtype="bfloat16"),
    "uint8": sv.Transform(resize=(30, 20), vertical_flip=True, layout="THWC", dtype="uint8"),
    "bicubic": sv.Transform(resize=(30, 20), interpolation="bicubic"),
    "augmented": sv.Transform(
        resize=40, crop=32, rotate=30, brightness=0.4, contrast=0.4, saturation=0.4, hue=20, blur=0.5, erase=0.5,
        horizontal_flip=True, layout="TCHW", dtype="float16",
    ),
    "warped": sv.Transform(crop=32, rotate=30, translate=0.2, zoom=(0.7, 1.4), shear=15, grayscale=0.3),
}  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of 16 bits that are multiples of 257: their pixels are known."""
    folder = tmp_path_factory.mktemp("images")
    for number in range(3):
        pixels = np.roll(picture(), 7 * number, axis=1)
        (folder / f"i{number}x.png").write_bytes(png_of(pixels.astype(np.uint16) * 257))
    sv.pack(folder, folder / "made", images=True, progress=False)
    return folder / "made"


@pytest.mark.parametrize("name", TRANSFORMS)
def test_it_gives_what_a_loader_gives_with_the_same_draw(name: str, dataset: Path) -> None:
    transform, device = TRANSFORMS[name], "cpu"
    loader = sv.StreamLoader(dataset, batch_size=1, sampling=sv.Window(1), transform=transform, device=device, seed=7)
    opened = sv.Dataset.open(dataset)
    seen = []
    with loader:
        for batch in chain(loader, loader):
            clip, epoch = int(batch["clip"]), int(batch["epoch"])
            pixels = np.roll(picture(), 7 * int(opened.key(clip)[1]), axis=1)
            with torch.device("meta"):  # a default device, as training programs set
                one = transform.apply(pixels[None], seed=7, epoch=batch["epoch"][0], clip=batch["clip"][0])
            assert torch.equal(one, batch["video"][0])
            image = transform.apply(torch.from_numpy(pixels.copy()), seed=7, epoch=epoch, clip=clip)
            assert torch.equal(image, one.select(transform.layout.index("T"), 0))
            seen.append((clip, epoch))
    assert sorted(seen) == [(clip, epoch) for clip in range(3) for epoch in range(2)]


def test_views_give_a_dict_and_all_frames_have_one_draw() -> None:
    views = sv.Views({"big": TRANSFORMS["augmented"], "small": sv.Transform(resize=(8, 8), layout="TCHW")})
    frames = np.stack([picture()] * 3)
    made = views.apply(frames, seed=1, clip=2)
    assert {name: tuple(one.shape) for name, one in made.items()} == {"big": (3, 3, 32, 32), "small": (3, 3, 8, 8)}
    for one in made.values():
        assert torch.equal(one[0], one[2])


@pytest.mark.parametrize(
    ("frames", "said"),
    [(np.zeros((4, 4, 3)), "float64"), (np.zeros((4, 4, 4), np.uint8), "4, 4, 4"), (picture(8, 8), "larger than")],
)
def test_other_frames_are_refused(frames: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        TRANSFORMS["warped"].apply(frames)


@pytest.mark.parametrize("number", [-1, 1 << 64, True, 0.5])
def test_what_is_no_number_of_a_clip_is_refused(number: Any) -> None:
    with pytest.raises(InputError, match="clip must be a whole number"):
        sv.Transform().apply(picture(), clip=number)


def test_a_part_of_ones_own_needs_a_graph() -> None:
    with pytest.raises(InputError, match="part of a graph"):
        sv.Transform(dali=lambda frames: frames).apply(picture())


def test_warping_is_the_affine_map_about_the_centre() -> None:
    image = np.zeros((41, 61, 3), np.uint8)
    image[20, 30] = 255

    def where(**options: Any) -> tuple[int, int]:
        made = sv.Transform(layout="THWC", dtype="uint8", **options).apply(image)
        return divmod(int(made[..., 0].argmax()), made.shape[1])

    assert where(zoom=(2.0, 2.0)) == (20, 30)
    image[20, 30], image[20, 40] = 0, 255
    turned = where(rotate=(90.0, 90.0), zoom=(1.0, 1.0001))
    assert turned == where(rotate=(90.0, 90.0)) == (10, 30)
    assert where(zoom=(2.0, 2.0)) == (20, 50)
    image[20, 40], image[30, 30] = 0, 255
    assert where(shear=(45.0, 45.0)) == (30, 40)
    moves = sv.Transform(translate=0.2, layout="THWC", dtype="uint8")
    assert len({int(moves.apply(image, clip=n).argmax()) for n in range(9)}) == 9
    assert not sv.Transform(translate=0.2, zoom=0.5, shear=5).for_evaluation().warps


def test_of_a_video_it_gives_what_a_loader_gives_that_converts_first(tmp_path: Path) -> None:
    packed = pack_recipes({"video": Recipe(width=96, height=64, frames=12, b_frames=2)}, tmp_path)
    whole = sv.Transform(layout="THWC", dtype="uint8", resize_in="rgb")
    shrunk = sv.Transform(random_resized_crop=(0.2, 0.9), crop=40, horizontal_flip=0.5, hue=20, resize_in="rgb")
    frames, made = (
        sv.ClipDataset(packed, sampling=sv.Window(4, start="center"), transform=one, seed=3)[0]["video"]
        for one in (whole, shrunk)
    )
    assert torch.equal(shrunk.apply(frames, seed=3), made)
