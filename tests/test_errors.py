"""streamvid/errors.py."""

from __future__ import annotations

import pickle

import pytest

from streamvid.errors import ClipError, DatasetError


def test_a_clip_error_names_its_clip_and_place_and_survives_another_process() -> None:
    error = ClipError("it is torn", row=7, key="dog", shard="00000003", offset=4711, packet=12, suspect="cache")
    assert isinstance(error, DatasetError)
    assert all(part in str(error) for part in ("'dog'", "00000003", "4711", "packet 12", "it is torn", "cache"))
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), vars(again)) == (str(error), vars(error))


@pytest.mark.parametrize("suspect", ["source", "shard", "cache", "index"])
def test_every_suspect_has_a_remedy(suspect: str) -> None:
    error = ClipError("it is torn", key="dog", suspect=suspect)  # type: ignore[arg-type]
    assert "; " in str(error)
    assert "None" not in str(error)
    assert ("streamvid index --update" in str(error)) == (suspect == "source")


def test_it_can_be_made_of_its_text_alone_as_pytorch_does() -> None:
    assert str(ClipError("Caught ClipError in a worker")) == "Caught ClipError in a worker"
