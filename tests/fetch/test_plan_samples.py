"""Planning samples: the metadata that a sampler may ask for."""

from __future__ import annotations

import numpy as np
import pytest

from streamvid.errors import DatasetError
from streamvid.fetch.plan_samples import clip_times
from streamvid.video.frame_index import FrameIndex
from tests.support.tables import dataset_of, string_column


def index_of_one_frame() -> FrameIndex:
    zero, one = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    return FrameIndex(zero, zero, one, one)


def test_metadata_come_as_the_json_has_them() -> None:
    dataset = dataset_of(['{"a": [1, {"b": null}], "n": 1e400}'])
    assert clip_times(dataset, 0, index_of_one_frame()).meta == {"a": [1, {"b": None}], "n": float("inf")}


@pytest.mark.parametrize("text", ["", "[]", "1", "{", "[" * 100_000, '{"x": ' * 50_000, "null"])
def test_damaged_metadata(text: str) -> None:
    dataset = dataset_of(["{}", "{}"])
    object.__setattr__(dataset.clips, "meta", string_column([dataset.clips.meta[0], text]))
    times = clip_times(dataset, 1, index_of_one_frame())
    with pytest.raises(DatasetError, match=r"clip 'clip1' .*its metadata are not a JSON object"):
        _ = times.meta


def test_a_function_of_a_user_cannot_change_the_times_of_a_clip() -> None:
    """They are kept for later samples: `clip.pts += …` shifted the frames of all of them, without a word."""
    index = index_of_one_frame()
    times = clip_times(dataset_of(["{}"]), 0, index)
    for array in (times.pts, times.keyframes):
        with pytest.raises(ValueError, match="read-only"):
            array += 5
    assert index.frame_pts.tolist() == [0]
