"""Videos whose headers claim enormous pictures: packing refuses them, in bounded memory."""

from __future__ import annotations

from pathlib import Path

from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
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


def test_headers_that_claim_enormous_pictures(tmp_path: Path) -> None:
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
    found = outcomes(pack_alone, paths)
    assert all("can be packed" in text for text in found), found
