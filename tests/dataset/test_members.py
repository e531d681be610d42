"""Other members of WebDataset samples: bytes on demand, arrays in batches, and nothing unpickled."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import streamvid as sv
from streamvid.dataset.members import npy_header, parse_npy
from streamvid.errors import ClipError, DatasetError, InputError
from tests.support.foreign import CLIP, encoded, npy, write_tar

OPTIONS: dict[str, Any] = {"sampling": sv.Window(2), "transform": sv.Transform(resize=(32, 32)), "batch_size": 4}


pytestmark = pytest.mark.usefixtures("user")


class Bomb:
    """Unpickling it is found out."""

    def __reduce__(self) -> tuple[object, ...]:
        return (pytest.fail, ("unpickled",))


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    """Four samples: `fixed.npy` alike in all, `npy` ragged, `rare.npy` in one, `pyd` with a pickle."""
    clip, members = encoded(CLIP, tmp_path), []
    for n in range(4):
        stream = io.BytesIO()
        np.save(stream, np.array([Bomb()], dtype=object), allow_pickle=True)
        members += [
            (f"{n}.mp4", clip),
            (f"{n}.fixed.npy", npy(np.full((2, 3), n), ">f4")),
            (f"{n}.npy", npy(np.arange(n + 1), "int64")),
            (f"{n}.pyd", b"pickle %d" % n),
            (f"{n}.objects.npy", stream.getvalue()),
        ]
    members.append(("3.rare.npy", npy([7])))
    path = write_tar(tmp_path / "tars" / "a.tar", members)
    sv.index(path.parent, tmp_path / "set", progress=False)
    return path


def test_members_on_demand(tmp_path: Path, tar: Path) -> None:
    data = sv.Dataset.open(tmp_path / "set")
    assert data.members("3") == ["fixed.npy", "npy", "objects.npy", "pyd", "rare.npy"]
    assert data.member("2", "pyd") == b"pickle 2"
    assert data.member(1, "npy") == npy([0, 1], "int64")
    for name in ("rare.npy", None, 3, ["pyd"]):
        with pytest.raises(InputError, match=rf"no member {re.escape(repr(name))}: it has fixed.npy"):
            data.member("1", name)  # type: ignore[arg-type]
    for clip, words in {"7": "no clip '7'", 4: "a whole number from 0 to 3; it is 4", None: "it is None"}.items():
        with pytest.raises(InputError, match=words):
            data.member(clip, "pyd")  # type: ignore[arg-type]
        with pytest.raises(InputError, match=words):
            data.members(clip)  # type: ignore[arg-type]
    tar.write_bytes(tar.read_bytes())
    with pytest.raises(ClipError, match="changed since it was indexed"):
        sv.Dataset.open(tmp_path / "set").member("1", "npy")


def test_members_in_batches(tmp_path: Path, tar: Path) -> None:
    columns = ["fixed.npy", "npy", "rare.npy", "objects.npy", "pyd"]
    with sv.StreamLoader(str(tmp_path / "set"), columns=columns, **OPTIONS) as loader:
        (batch,) = (dict(one) for one in loader)
    order: Any = [int(key) for key in batch["key"]]
    assert torch.equal(batch["fixed.npy"], torch.tensor(order).float()[:, None, None].expand(4, 2, 3))
    assert [one.tolist() for one in batch["npy"]] == [list(range(n + 1)) for n in order]
    assert [None if one is None else one.tolist() for one in batch["rare.npy"]] == [
        [7.0] if n == 3 else None for n in order
    ]
    assert batch["objects.npy"] == [None] * 4
    assert batch["pyd"] == [b"pickle %d" % n for n in order]
    clips = sv.ClipDataset(
        str(tmp_path / "set"), columns=columns, sampling=sv.Window(2), transform=sv.Transform(resize=(32, 32))
    )
    sample = clips[2]
    assert torch.equal(sample["fixed.npy"], torch.full((2, 3), 2.0))
    assert sample["npy"].tolist() == [0, 1, 2]
    assert (sample["rare.npy"], sample["pyd"]) == (None, b"pickle 2")
    with sv.GpuDataLoader(clips, batch_size=4, device="cpu") as loader:
        (batch,) = (dict(one) for one in loader)
    assert batch["fixed.npy"].shape == (4, 2, 3)
    assert batch["pyd"] == [b"pickle 0", b"pickle 1", b"pickle 2", b"pickle 3"]


def test_there_must_be_such_a_member(tmp_path: Path, tar: Path) -> None:
    with pytest.raises(InputError, match="no column 'other'"):
        sv.StreamLoader(str(tmp_path / "set"), columns=["other"], **OPTIONS)


def test_members_of_clips_that_are_absent(tmp_path: Path, tar: Path) -> None:
    """A masked clip has no member, and not that of the clip in its place."""
    options = {**OPTIONS, "columns": ["fixed.npy", "pyd"], "on_error": "mask", "quarantine": str(tmp_path / "q")}
    subset = sv.Subset(str(tmp_path / "set"), exclude=["1"])
    with sv.StreamLoader(subset, **options) as loader:
        (batch,) = (dict(one) for one in loader)
    assert not batch["valid"].all()
    for key, valid, fixed, pyd in zip(batch["key"], batch["valid"], batch["fixed.npy"], batch["pyd"], strict=True):
        assert (pyd, fixed[0, 0].item()) == ((b"pickle %d" % int(key), int(key)) if valid else (None, 0))


def test_members_that_lie_elsewhere_than_in_their_tar(tmp_path: Path, tar: Path) -> None:
    data = sv.Dataset.open(tmp_path / "set")
    table = data.to_arrow(["members"])["members"].to_pylist()
    places = json.loads(table[0])["pyd"]
    for wrong in ([places[0], 1 << 50], [-1, 5], ["a", 5], [1], {}):
        lie = json.dumps({"pyd": wrong})
        data.columns._made["meta.members"] = pa.array([lie] * 4)
        data.columns._made.pop("members", None)
        with pytest.raises(DatasetError, match=r"within its tar|damaged"):
            data.member(0, "pyd")


def test_arrays_are_never_unpickled_and_headers_that_lie_cost_nothing() -> None:
    for dtype in ("int8", "uint16", "float16", ">i4", "complex64", "bool"):
        for order in "CF":
            values = np.asarray(np.arange(6).reshape(2, 3), dtype=dtype, order=order)  # type: ignore[call-overload]
            stream = io.BytesIO()
            np.save(stream, values)
            made = parse_npy(stream.getvalue())
            assert made is not None
            assert made.dtype == values.dtype.newbyteorder("=")
            assert np.array_equal(made, values)
    stream = io.BytesIO()
    np.save(stream, np.array([Bomb()], dtype=object), allow_pickle=True)
    assert parse_npy(stream.getvalue()) is None
    huge = npy([1.0]).replace(b"(1,), }          ", b"(99999999999,), }")
    assert npy_header(huge) is not None
    assert parse_npy(huge) is None
    one = npy([1])
    for bad in (b"", one[:6], one[:50], one[:-1], one.replace(b"<f4", b"<U9"), b"\x93NUMPY\x09\x00" * 9):
        assert parse_npy(bad) is None


@pytest.mark.parametrize(
    "damage", [(b"(2, 3)", b"(3, 3)"), (b"(2, 3)", b"(2, 2)"), (b"'>f4'", b"'>i4'"), (b"NUMPY", b"NUMPX")]
)
def test_an_array_whose_header_is_damaged_costs_its_clip(
    tmp_path: Path, tar: Path, damage: tuple[bytes, bytes]
) -> None:
    options = {**OPTIONS, "columns": ["fixed.npy"], "shuffle": False}
    (clean,) = sv.StreamLoader("set", **options)
    status, data = tar.stat(), bytearray(tar.read_bytes())
    at = data.index(damage[0], data.index(b"1.fixed.npy"))
    data[at : at + len(damage[0])] = damage[1]
    tar.write_bytes(data)
    os.utime(tar, ns=(status.st_atime_ns, status.st_mtime_ns))  # as of a disk that rots
    (batch,) = sv.StreamLoader("set", **options)
    valid = batch["valid"].tolist()
    assert valid == [True, False, True, True]
    for name in ("video", "fixed.npy"):
        assert torch.equal(batch[name][valid], clean[name][valid])
    (masked,) = sv.StreamLoader("set", **options, on_error="mask")
    assert masked["valid"].tolist() == valid
    with pytest.raises(ClipError, match=r"clip '1'.*fixed.npy.*not the array that was indexed"):
        list(sv.StreamLoader("set", **options, on_error="raise"))
    items = sv.ClipDataset(
        "set", **{name: one for name, one in OPTIONS.items() if name != "batch_size"}, columns=["fixed.npy"]
    )
    assert [bool(items[n]["valid"]) for n in range(4)] == valid
