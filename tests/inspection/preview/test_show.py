"""`show`: batches of all loaders, layouts and dtypes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import streamvid as sv
from streamvid.errors import InputError
from streamvid.inspection.preview.show import Shown
from tests.support.bad_clips import make_dataset

FRAMES, HEIGHT, WIDTH = 4, 20, 24
ORDER = {"THWC": "thwc", "TCHW": "tchw", "CTHW": "cthw"}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("show"), [("h264", "mp4")] * 3)


def colours(shown: Shown) -> np.ndarray:
    """The middle pixel of every picture, float [strips, pictures, 3]."""
    return np.array(
        [
            [np.asarray(Image.open(io.BytesIO(one.jpeg)).convert("RGB"), float)[10, 12] for one in strip.pictures]
            for strip in shown.strips
        ]
    )


def plain(clips: int = 2, frames: int = FRAMES) -> torch.Tensor:
    """uint8 [clips, frames, height, width, 3], each frame of one colour."""
    random = np.random.default_rng(0)
    colour = random.integers(0, 256, (clips, frames, 1, 1, 3), dtype=np.uint8)
    return torch.from_numpy(np.broadcast_to(colour, (clips, frames, HEIGHT, WIDTH, 3)).copy())


def laid_out(video: torch.Tensor, layout: str) -> torch.Tensor:
    return video.permute([0, *("thwc".index(axis) + 1 for axis in layout.lower())])


@pytest.mark.parametrize("layout", ["THWC", "TCHW", "CTHW"])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32"])
def test_layouts_and_dtypes(layout: Any, dtype: Any) -> None:
    wanted = plain()
    unit = wanted.double() / 255
    normalised = (unit - torch.tensor([0.4, 0.5, 0.6])) / torch.tensor([0.2, 0.25, 0.3])
    kind = getattr(torch, dtype)
    for frames in (FRAMES, 3):
        video = laid_out((wanted if dtype == "uint8" else normalised.to(kind))[:, :frames], layout)
        options = {} if dtype == "uint8" else {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.25, 0.3)}
        transform = sv.Transform(layout=layout, dtype=dtype, **options)  # type: ignore[arg-type]
        got = colours(sv.show({"video": video}, transform=transform))
        assert np.abs(got - wanted[:, :frames, 10, 12].numpy()).max() <= (6 if dtype == "bfloat16" else 4)
    # Without the transform, the layout is told from the shape, and 0 to 1 is taken as it is.
    video = laid_out(wanted if dtype == "uint8" else unit.to(kind), layout)
    assert np.abs(colours(sv.show({"video": video})) - wanted[:, :, 10, 12].numpy()).max() <= 4


def test_unknown_values_are_scaled_and_it_says_so() -> None:
    video = torch.linspace(-2, 2.5, FRAMES)[None, None, :, None, None].expand(1, 3, FRAMES, HEIGHT, WIDTH).clone()
    video[0, :, 1, 0, 0] = float("nan")
    video[0, :, 2, 0, 0] = float("inf")
    shown = sv.show({"video": video})
    assert "values from -2 to 2.5 as black to white" in shown.notes[0]
    assert colours(shown)[0, :, 0] == pytest.approx([0, 85, 170, 255], abs=3)
    flat = sv.show({"video": torch.full((1, 3, FRAMES, HEIGHT, WIDTH), 7.0)})
    assert colours(flat).max() <= 2


def test_masks_times_labels_and_metadata() -> None:
    batch = {
        "video": plain(3),
        "mask": torch.tensor([[True] * 4, [True, True, False, False], [False] * 4]),
        "pts": torch.tensor([[0.0, 0.5, 1, 1.5], [0, 0.5, 0.5, 0.5], [-1.0] * 4]),
        "label": torch.tensor([3, -100, 0]),
        "valid": torch.tensor([True, True, False]),
        "clip": torch.tensor([7, 8, 9]),
        "epoch": torch.tensor([0, 0, 1]),
        "key": ["one", "<two>", "three"],
        "caption": ["a", "b" * 3000, "\u202ec"],
        "score": torch.tensor([0.5, 1.5, float("nan")]),
        "vector": torch.zeros(3, 8),
    }
    with torch.device("meta"):  # a default device, as training programs set
        shown = sv.show(batch)
    assert [[one.real for one in strip.pictures] for strip in shown.strips] == batch["mask"].tolist()  # type: ignore[attr-defined]
    assert [one.seconds for one in shown.strips[1].pictures] == [0, 0.5, 0.5, 0.5]
    assert [one.seconds for one in shown.strips[2].pictures] == [None] * 4
    assert [strip.title for strip in shown.strips] == ["one", "<two>", "three"]
    assert shown.strips[0].facts == ("label 3",)
    assert shown.strips[1].facts == ()
    assert any("not valid" in fact for fact in shown.strips[2].facts)
    html = shown._repr_html_()
    assert "&lt;two&gt;" in html
    assert html.count('class="padding"') == 6
    assert "b" * 2000 + "…" in html
    assert "\u202e" not in html
    assert html.count("<dt><bdi>caption") == html.count("<dt><bdi>vector") == 3
    assert "Shown(3 strips" in repr(shown)


def test_what_a_loop_adds_to_a_batch() -> None:
    """A loss, a tokenizer's dict: they say nothing of single clips, and are left out."""
    tokens = {"input_ids": torch.zeros(2, 5)}
    batch = {"video": plain(), "loss": torch.tensor(0.5), "step": 7, "tokens": tokens, "score": torch.arange(2)}
    assert [strip.fields for strip in sv.show(batch).strips] == [(("score", "0"),), (("score", "1"),)]


def test_batches_of_all_loaders(packed: Path, tmp_path: Path) -> None:
    transform = sv.Transform(resize=64, crop=48, mean=0.5, std=0.5, dtype="bfloat16")
    sampling = sv.Window(16, stride=1)
    clips = sv.ClipDataset(packed, sampling=sampling, transform=transform)
    with sv.StreamLoader(clips, batch_size=3, shuffle="none") as loader:
        streamed = sv.show(next(iter(loader)), transform=transform)
    with torch.no_grad():
        loader = torch.utils.data.DataLoader(clips, batch_size=3)
        collated = sv.show(next(iter(loader)), transform=transform)
    of_one = [sv.show(clips[row], transform=transform) for row in range(3)]
    for row in range(3):
        assert streamed.strips[row].title == clips.dataset.key(row)
        assert len(streamed.strips[row].pictures) == 16
        assert streamed.strips[row].pictures == collated.strips[row].pictures == of_one[row].strips[0].pictures
    views = {"small": sv.Transform(resize=(16, 16), dtype="uint8"), "large": sv.Transform(resize=(64, 64), mean=0.5)}
    clips = sv.ClipDataset(packed, sampling=sv.Window(40, pad="constant"), transform=views)
    shown = sv.show(torch.utils.data.default_collate([clips[0], clips[1]]), transform=views)
    assert [strip.pictures[0].width for strip in shown.strips] == [16, 64, 16, 64]
    assert {strip.positions for strip in shown.strips} == {40}
    assert len(shown.notes) == 2
    shown.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().count('class="clip"') == 4
    assert "script-src 'none'" in (tmp_path / "page.html").read_text()
    assert len(sv.show(clips[0]).strips) == 2


def test_as_many_as_asked_for() -> None:
    shown = sv.show({"video": plain(20, 6)}, clips=5)
    assert len(shown.strips) == 5
    assert "The first 5 of 20 clips." in shown.notes
    assert len(sv.show({"video": plain(1, 100)}).strips[0].pictures) == 16


@pytest.mark.parametrize(
    ("batch", "options"),
    [
        ({}, {}),
        ({"video": "x"}, {}),
        ({"video": torch.zeros(2, 3)}, {}),
        ({"video": torch.zeros(2, 5, 6, 7, 8)}, {}),
        ({"video": torch.zeros(1, 3, 4, 8, 8), "mask": torch.ones(1, 9)}, {}),
        ({"video": torch.zeros(1, 3, 4, 8, 8)}, {"transform": sv.Transform(layout="THWC")}),
        ({"video": torch.zeros(1, 3, 4, 8, 8)}, {"clips": 0}),
        ({"video": torch.zeros(1, 3, 4, 8, 8)}, {"transform": "Transform"}),
        ([1, 2], {}),
    ],
)
def test_what_is_no_batch(batch: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        sv.show(batch, **options)


def test_other_files_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes.html").write_text("mine")
    with pytest.raises(InputError, match="no page of streamvid"):
        sv.show({"video": plain()}).save(tmp_path / "notes.html")
    assert (tmp_path / "notes.html").read_text() == "mine"
