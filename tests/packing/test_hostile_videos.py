"""Videos whose headers claim enormous pictures: packing refuses them, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import streamvid as sv
from streamvid.errors import InputError, StreamvidError
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from tests.support import bombs
from tests.support.bounded import outcomes
from tests.support.clips import write
from tests.support.packed import packing_inline
from tools.clips import Recipe

JPEG, VP8 = b"\xff\xc0", b"\x9d\x01\x2a"
"""What comes before the size of a picture: of JPEG 3 bytes further on, height first, of VP8 at once."""


def pack_alone(path: str) -> None:
    """Pack one file."""
    with packing_inline():
        pack([path], f"{path}.set", options=PackOptions("any"), progress=False)


def pack_for_gpu(path: str) -> None:
    """Pack one file for decoders of a GPU."""
    with packing_inline():
        pack([path], f"{path}.gpu", progress=False)


def test_headers_that_claim_enormous_pictures(tmp_path: Path, forked_python: Path) -> None:
    paths = []
    for codec, container, mark, skipped, side in (
        ("mjpeg", "avi", JPEG, 3, b"\xff\xff"),
        ("mjpeg", "avi", JPEG, 3, b"\x3e\x80"),
        ("mjpeg", "mov", JPEG, 3, b"\xff\xff"),
        ("vp8", "webm", VP8, 0, b"\xff\x3f"),
    ):
        recipe = Recipe(codec, container, width=64, height=64, frames=4, gop=1, b_frames=0)  # type: ignore[arg-type]
        path = write(recipe, tmp_path / f"{len(paths)}.{container}")
        data = bytearray(path.read_bytes())
        at = data.find(mark)
        while at >= 0:
            first = at + len(mark) + skipped
            data[first : first + 4] = 2 * side
            at = data.find(mark, first)
        path.write_bytes(data)
        paths.append(str(path))
    found = outcomes(forked_python, pack_alone, paths)
    assert all("can be packed" in text for text in found), found


def index_alone(path: str) -> None:
    """Index one file, by all packets and by its tables alone."""
    for fast in (False, True):
        with packing_inline():
            try:
                sv.index([path], f"{path}.{fast}", workers=1, fast=fast, progress=False)
            except StreamvidError as error:
                caught = error
            else:
                continue
        if fast:
            raise caught
        if "can be packed" not in str(caught):
            raise InputError(f"another error: {caught}")


@pytest.mark.parametrize("function", [pack_alone, index_alone])
def test_parameter_sets_that_claim_enormous_pictures(
    function: Callable[[str], None], tmp_path: Path, forked_python: Path
) -> None:
    """FFmpeg would allocate up to 17 of them, and spend seconds on what it makes up for each."""
    paths = []
    for codec in bombs.CONTAINERS:
        whole = bombs.source(codec, tmp_path, frames=10)
        for side in (16384, 16000):
            target = tmp_path / f"{codec}-{side}{whole.suffix}"
            paths.append(str(bombs.claiming(codec, whole, target, side, side)))
    found = dict(zip((Path(path).stem for path in paths), outcomes(forked_python, function, paths), strict=True))
    assert all("can be packed" in text for text in found.values()), found
    for codec in ("h264", "hevc"):
        assert "its frames are 16000x16000; the limit is 67,108,864 pixels" in found[f"{codec}-16000"]


def test_sizes_that_change_midway(tmp_path: Path, forked_python: Path) -> None:
    paths = []
    for codec in ("h264", "hevc", "av1", "vp9", "vp8", "mjpeg"):
        small = bombs.source(codec, tmp_path, frames=10)
        large = bombs.source(codec, tmp_path, width=2 * bombs.WIDTH, height=2 * bombs.HEIGHT, frames=10)
        enormous = bombs.claiming(codec, small, tmp_path / f"enormous-{codec}{small.suffix}", 16000, 16000)
        # Packets of H.264 and HEVC have no parameter sets of their own here: those of the last would be like the first.
        last = [] if codec in ("h264", "hevc") else [(small, enormous)]
        for n, two in enumerate([(small, large), (large, small), *last]):
            paths.append(str(bombs.joined(codec, *two, tmp_path / f"{codec}-{n}{small.suffix}")))
    found = dict(zip((Path(path).stem for path in paths), outcomes(forked_python, pack_alone, paths), strict=True))
    wants = dict.fromkeys(("av1", "vp9", "vp8", "mjpeg"), "size of its pictures changes")
    fits = found.pop("hevc-0")
    assert "slices of its packet 10 do not fit its parameter sets" in fits, fits
    assert all(wants.get(name[:-2], "frames do not decode") in text for name, text in found.items()), found
    transcoded = [path for path in paths if Path(path).stem[:-2] in wants]
    found = dict(
        zip((Path(path).stem for path in transcoded), outcomes(forked_python, pack_for_gpu, transcoded), strict=True)
    )
    assert {name for name, text in found.items() if "can be packed" in text} == {f"{codec}-2" for codec in wants}, found
