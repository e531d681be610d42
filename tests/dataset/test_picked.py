"""One of several captions: by weight, the same for the same seed, pass and sample, in all loaders."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

import streamvid as sv
from streamvid.dataset.selection import select_rows
from streamvid.errors import InputError
from tests.support.packed import pack_recipes
from tests.support.tables import needs_fixed_lists
from tools.recipes import Recipe

pytestmark = needs_fixed_lists

CLIPS = 4
CAPTIONS = [["a", "b", "c"], ["d"], [], None]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipes = {f"clip{n}": Recipe(width=64, height=64, frames=4, gop=2, b_frames=0, seed=n) for n in range(CLIPS)}
    path = pack_recipes(recipes, tmp_path_factory.mktemp("picked"))
    table = {
        "key": [f"clip{n}" for n in range(CLIPS)],
        "captions": CAPTIONS,
        "weights": [[1.0, 0.0, 3.0], [2.0], [], None],
        "numbers": [[1, 2], [3], [4], None],
        "zeros": [[0.0, 0.0, 0.0], [0.0], [], None],
        "short": [[1.0], [1.0], [], None],
        "negative": [[1.0, -1.0, 1.0], [1.0], [], None],
        "pairs": pa.array([[1, 2], [3, 4], [5, 6], None], pa.list_(pa.int32(), 2)),
        "second": pa.array([[0, 1], [0, 1], [0, 2], None], pa.list_(pa.float32(), 2)),
    }
    sv.annotate(path, pa.table(table))
    return path


def picks(folder: Path, pick: sv.Pick, *, epochs: int = 1, **options: Any) -> list[tuple[int, Any]]:
    loader = sv.StreamLoader(
        folder, **{"batch_size": 2, "sampling": sv.Window(2), "device": "cpu", "columns": [pick], **options}
    )
    found = []
    for _ in range(epochs):
        for batch in loader:
            values = batch[pick.column]
            found += list(
                zip(batch["clip"].tolist(), values if isinstance(values, list) else values.tolist(), strict=True)
            )
    return found


def test_one_of_several_by_weight(packed: Path) -> None:
    found = picks(packed, sv.Pick("captions", weights="weights"), epochs=80)
    assert {text for clip, text in found if clip == 1} == {"d"}
    assert {text for clip, text in found if clip > 1} == {""}
    counts = Counter(text for clip, text in found if clip == 0)
    assert set(counts) == {"a", "c"}
    assert 0.15 < counts["a"] / 80 < 0.35
    alike = Counter(text for clip, text in picks(packed, sv.Pick("captions"), epochs=80) if clip == 0)
    assert set(alike) == {"a", "b", "c"}
    assert min(alike.values()) > 16
    by_place = Counter(
        text for clip, text in picks(packed, sv.Pick("captions", weights=[0, 1, 0]), epochs=20) if clip < 2
    )
    assert set(by_place) == {"b", ""}, "the only value of clip 1 has no weight"


def test_it_depends_on_seed_pass_and_sample_alone(packed: Path) -> None:
    pick = sv.Pick("captions")
    one = picks(packed, pick, epochs=12)
    assert picks(packed, pick, epochs=12) == one
    assert dict(picks(packed, pick, batch_size=1, shuffle=False)) == dict(one[:CLIPS])
    assert picks(packed, pick, epochs=12, seed=1) != one
    of_first = [text for clip, text in one if clip == 0]
    assert len(set(of_first)) > 1
    half = picks(packed, pick, rank=1, world_size=2, batch_size=1)
    assert set(half) <= set(one[:CLIPS])
    # Frames and augmentation are those of a loader without picks.
    transform = sv.Transform(crop=(32, 32), horizontal_flip=0.5)
    options: dict[str, Any] = {"batch_size": 4, "sampling": sv.Window(2), "device": "cpu", "transform": transform}
    (plain,) = sv.StreamLoader(packed, **options)
    (picked,) = sv.StreamLoader(packed, columns=[pick, "captions"][:1], **options)
    assert torch.equal(plain["video"], picked["video"])


def test_other_loaders_and_types(packed: Path) -> None:
    pick = sv.Pick("captions")
    items = sv.ClipDataset(packed, sampling=sv.Window(2), columns=[pick, sv.Pick("numbers")])
    assert items[1]["captions"] == "d"
    assert items[1]["numbers"].item() == 3.0
    assert {items[0]["captions"] for _ in range(3)} <= {"a", "b", "c"}
    batches = list(sv.GpuDataLoader(items, batch_size=2, device="cpu", num_workers=0))
    assert [text for batch in batches for text in batch["captions"]][1:] == ["d", "", ""]
    assert batches[1]["numbers"][0] == 4
    assert torch.isnan(batches[1]["numbers"][1])
    mix = picks(packed, pick, shuffle=False)
    assert picks(packed, pick, shuffle=False)[1:] == mix[1:]


@pytest.mark.parametrize(
    ("pick", "said"),
    [
        (lambda: sv.Pick("source"), "holds large_string, no lists"),
        (lambda: sv.Pick("nothing"), "there is no column 'nothing'"),
        (lambda: sv.Pick("captions", weights="key"), "no lists of numbers"),
        (lambda: sv.Pick("captions", weights="short"), "clip 'clip0' has not as many weights as values"),
        (lambda: sv.Pick("captions", weights="negative"), "clip 'clip0' has a weight that is no number from 0"),
        (lambda: sv.Pick("captions", weights=[1, 1]), "clip 'clip0' has more values than the 2 weights"),
        (lambda: sv.Pick("captions", weights=[0, 0, 0]), "not all of them 0"),
        (lambda: sv.Pick("captions", weights=[1, "x"]), "are a column or numbers"),
        (lambda: sv.Pick(7), "takes the name of a column"),
    ],
)
def test_wrong_picks_are_refused(packed: Path, pick: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        picks(packed, pick())


def test_all_weights_zero_is_no_value(packed: Path) -> None:
    assert {text for _, text in picks(packed, sv.Pick("captions", weights="zeros"))} == {""}


def test_spawned_workers(packed: Path, tmp_path: Path) -> None:
    import pickle

    folder = shutil.copytree(packed, tmp_path / "ds")
    items = sv.ClipDataset(folder, sampling=sv.Window(2), columns=[sv.Pick("captions")])
    assert pickle.loads(pickle.dumps(items))[1]["captions"] == "d"


def test_lists_of_fixed_size_are_lists(packed: Path) -> None:
    found = dict(picks(packed, sv.Pick("pairs", weights="second")))
    assert [found[n] for n in range(3)] == [2, 4, 6]
    assert math.isnan(found[3])
    conditions = {"3 in pairs": [1], "3 not in pairs": [0, 2], "len(pairs) == 2": [0, 1, 2], "pairs is None": [3]}
    for condition, rows in conditions.items():
        assert select_rows(sv.Dataset.open(packed), where=condition).tolist() == rows, condition
    with pytest.raises(InputError, match="compares a list with a number"):
        select_rows(sv.Dataset.open(packed), where="pairs == 3")
