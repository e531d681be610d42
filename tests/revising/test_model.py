"""Any sequence of changes does what a model of the dataset does, in every revision of it."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamvid as sv
from streamvid.dataset.revisions import read_manifest
from streamvid.errors import DatasetError, InputError
from tests.revising.conftest import CLIPS

KEYS = [f"clip{n}" for n in range(CLIPS)]
_some = st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True)
_change = st.one_of(
    st.tuples(st.just("forget"), _some),
    st.tuples(st.just("purge"), _some),
    st.tuples(
        st.just("annotate"), _some, st.sampled_from(["score", "a", "b"]), st.one_of(st.none(), st.integers(0, 9))
    ),
    st.tuples(st.just("text"), _some, st.sampled_from(["caption", "score"]), st.sampled_from(["x", "y"])),
)


@dataclass(frozen=True)
class Model:
    """What a revision holds: columns by name, forgotten and purged clips."""

    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    forgotten: frozenset[str] = frozenset()
    purged: frozenset[str] = frozenset()


def start() -> Model:
    scores = {key: n / 4 for n, key in enumerate(KEYS)}
    return Model({"score": scores, "caption": {key: f"caption of number {n}" for n, key in enumerate(KEYS)}})


def check(dataset: sv.Dataset, model: Model) -> None:
    assert {KEYS[row] for row in dataset.forgotten.tolist()} == model.forgotten
    assert {KEYS[row] for row, size in enumerate(dataset.clips.mp4_size.tolist()) if not size} == model.purged
    assert [key for key in dataset.clips.key if not key.startswith("purged-")] == [
        k for k in KEYS if k not in model.purged
    ]
    names = {name for name in dataset.columns.names if name not in dataset.columns.built_in}
    assert names == set(model.columns)
    for name, values in model.columns.items():
        assert dataset.columns.get(name).to_pylist() == [values.get(key) for key in KEYS], name


@settings(max_examples=settings.default.max_examples // 5, suppress_health_check=list(HealthCheck))
@given(st.lists(_change, min_size=1, max_size=6))
def test_any_sequence_of_changes_gives_the_dataset_of_a_model(packed: Path, changes: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(shutil.copytree(packed, Path(name) / "ds"))
        models, oldest = [start()], 0
        for what, keys, *more in changes:
            before = models[-1]
            if what in ("forget", "purge"):
                sv.forget(folder, keys, purge=what == "purge")
                forgotten = before.forgotten | {*keys}
                purged = before.purged | ({*keys} if what == "purge" else frozenset())
                columns = {
                    column: {key: value for key, value in values.items() if key not in purged}
                    for column, values in before.columns.items()
                }
                now = Model(columns, forgotten, purged)
                if purged != before.purged:
                    oldest = len(models)
            else:
                column, value = more
                table = pa.table({"key": keys, column: [value] * len(keys)})
                numbers = column != "caption"
                if column in before.columns and value is not None and isinstance(value, str) == numbers:
                    with pytest.raises(InputError, match="holds"):
                        sv.annotate(folder, table)
                    continue
                sv.annotate(folder, table)
                kept = {key: value for key in keys if key not in before.purged}
                now = replace(before, columns={**before.columns, column: {**before.columns.get(column, {}), **kept}})
            if read_manifest(str(folder)).revision == len(models):
                models.append(now)
            else:
                assert now == before, "nothing is a revision in which nothing changes"
        for revision, model in enumerate(models):
            if revision >= oldest:
                check(sv.Dataset.open(folder, revision=revision), model)
            else:
                with pytest.raises(DatasetError, match="was ended by revision"):
                    sv.Dataset.open(folder, revision=revision)
