"""Random recipes for clips of the codecs that decode sessions take, of nearly all options that their encoders have."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Final

import numpy as np

from tools.clips import paint
from tools.pictures import Image
from tools.recipes import Codec, Container, Options, Recipe

Choices = dict[str, tuple[str, ...]]

_SMALLEST: Final = {"h264": (48, 16), "hevc": (144, 144), "vp9": (128, 128), "vp8": (48, 16), "mpeg4": (48, 16)}
"""Sizes from which NVDEC decodes them."""
_USUAL: Final = (
    (176, 144), (256, 256), (320, 180), (320, 192), (352, 288), (426, 240), (640, 272), (854, 480), (1280, 720),
    (720, 1280), (1920, 1080), (1998, 1080),
)  # fmt: skip
_CONTAINERS: Final[dict[str, tuple[Container, ...]]] = {
    "h264": ("mp4", "mkv", "ts", "mov", "avi"), "hevc": ("mp4", "mkv", "ts", "mov"), "vp9": ("webm", "mkv"),
    "vp8": ("webm", "mkv"), "mpeg4": ("mp4", "mkv", "mov", "avi"),
}  # fmt: skip
_X264: Final[Choices] = {
    "ref": ("1", "2", "4", "16"), "b-pyramid": ("none", "strict", "normal"), "b-adapt": ("0", "1", "2"),
    "scenecut": ("0", "40"), "weightp": ("0", "1", "2"), "weightb": ("0", "1"), "slices": ("1", "1", "3", "8"),
    "cabac": ("0", "1"), "8x8dct": ("0", "1"), "cqm": ("flat", "jvt"), "constrained-intra": ("0", "1"),
    "deblock": ("0,0", "-3,3", "6,6"), "no-deblock": ("0", "0", "1"), "aud": ("0", "1"), "me": ("dia", "hex", "umh"),
    "subme": ("0", "2", "7", "9"), "trellis": ("0", "1", "2"), "partitions": ("none", "all"),
    "direct": ("none", "spatial", "temporal", "auto"), "mixed-refs": ("0", "1"),
    "chroma-qp-offset": ("-12", "0", "12"), "qp": ("", "", "0", "1", "20", "51"), "aq-mode": ("0", "1", "3"),
    "nr": ("0", "500"), "sliced-threads": ("0", "1"), "slice-max-size": ("", "", "", "300"), "stitchable": ("0", "1"),
    "pic-struct": ("0", "1"), "frame-packing": ("", "", "3"), "level": ("", "", "", "5.2"),
    "intra-refresh": ("0", "0", "0", "0", "1"), "tff": ("", "", "", "", "", "1"),
    "fake-interlaced": ("", "", "", "", "", "1"),
}  # fmt: skip
_X265: Final[Choices] = {
    "ref": ("1", "2", "4", "8"), "b-pyramid": ("0", "1"), "b-adapt": ("0", "2"), "scenecut": ("0", "40"),
    "weightb": ("0", "1"), "weightp": ("0", "1"), "temporal-layers": ("1", "1", "2", "3"), "ctu": ("16", "32", "64"),
    "min-cu-size": ("8", "16"), "max-tu-size": ("8", "16", "32"), "tu-intra-depth": ("1", "3"),
    "tu-inter-depth": ("1", "4"), "rect": ("0", "1"), "amp": ("0", "1"), "tskip": ("0", "1"),
    "cu-lossless": ("0", "0", "1"), "lossless": ("0", "0", "0", "0", "1"), "sao": ("0", "1"),
    "deblock": ("0,0", "-6,6", "4,-2"), "no-deblock": ("0", "0", "1"), "signhide": ("0", "1"),
    "scaling-list": ("off", "off", "default"), "wpp": ("0", "1"), "slices": ("1", "1", "3"),
    "constrained-intra": ("0", "1"), "strong-intra-smoothing": ("0", "1"), "cbqpoffs": ("0", "-12", "12"),
    "crqpoffs": ("0", "6"), "aq-mode": ("0", "1", "2"), "repeat-headers": ("0", "1"), "aud": ("0", "1"),
    "temporal-mvp": ("0", "1"), "max-merge": ("1", "3", "5"), "qp": ("", "", "4", "30", "51"), "hash": ("", "1"),
    "opt-qp-pps": ("0", "1"), "opt-ref-list-length-pps": ("0", "1"), "idr-recovery-sei": ("0", "1"),
    "rd": ("2", "3", "5"), "me": ("dia", "hex", "umh"), "rc-lookahead": ("20",),
    "interlace": ("", "", "", "", "", "", "", "", "tff"),
}  # fmt: skip
_LAYERS: Final = (
    "ts_number_layers=3:ts_target_bitrate=100,150,200:ts_rate_decimator=4,2,1:ts_periodicity=4:ts_layer_id=0,2,1,2:"
    "ts_layering_mode=3"
)
_VPX: Final[tuple[dict[str, str], ...]] = (
    {},
    {
        "auto-alt-ref": "1",
        "lag-in-frames": "16",
        "cpu-used": "5",
        "b": "100k",
        "deadline": "good",
    },  # pictures not shown
    {"error-resilient": "1", "b": "300k"},
    {"deadline": "good", "cpu-used": "1", "b": "2M"},
    {"b": "200k", "ts-parameters": _LAYERS},
)
_VP9: Final[Choices] = {
    "tile-columns": ("0", "2"), "tile-rows": ("0", "2"), "frame-parallel": ("0", "1"), "aq-mode": ("0", "1", "3"),
    "lossless": ("0", "0", "0", "0", "1"), "sharpness": ("0", "7"), "row-mt": ("0", "1"),
}  # fmt: skip
_VP8: Final[Choices] = {
    "profile": ("0", "1", "2", "3"), "slices": ("1", "4"), "sharpness": ("0", "7"), "noise-sensitivity": ("0", "4"),
    "static-thresh": ("0", "500"), "max-intra-rate": ("0", "200"),
}  # fmt: skip
_MPEG4: Final[Choices] = {
    "flags": ("", "", "+qpel", "+mv4", "+qpel+mv4+aic", "+ildct+ilme"), "mpeg_quant": ("", "1"),
    "mbd": ("", "1", "2"), "trellis": ("", "2"), "data_partitioning": ("", "", "1"), "ps": ("", "200"),
    "qmin": ("", "1"), "qmax": ("", "3", "31"), "dc": ("", "8", "10"),
}  # fmt: skip


def random_encoding(seed: int) -> Recipe:
    """A recipe, the same for the same seed. Some are refused by their encoder."""
    rng = np.random.default_rng(seed)

    def one_of(values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    def some(choices: Choices) -> Options:
        chosen = {name: one_of(values) for name, values in choices.items()}
        return tuple((name, value) for name, value in chosen.items() if value)

    codec: Codec = one_of(("h264", "h264", "h264", "hevc", "hevc", "hevc", "vp9", "vp9", "vp8", "mpeg4"))
    least = _SMALLEST[codec]
    width, height = one_of(_USUAL) if rng.random() < 0.5 else (int(rng.integers(48, 420)), int(rng.integers(16, 300)))
    if codec != "vp9" or rng.random() < 0.7:
        width, height = width // 4 * 4, height // 4 * 4
    width, height = max(width, least[0]), max(height, least[1])
    small = width * height < 200_000
    gop = int(rng.integers(1, 40))
    options: Options = ()
    if codec in ("vp8", "vp9"):
        options = (*one_of(_VPX if codec == "vp9" else _VPX[:-1]).items(), *some(_VP9 if codec == "vp9" else _VP8))
    container = one_of(_CONTAINERS[codec])
    return Recipe(
        codec=codec,
        container=container,
        width=width,
        height=height,
        fps=one_of((Fraction(30), Fraction(25), Fraction(30000, 1001))),
        frames=int(rng.integers(1, 90 if small else 20)),
        gop=gop,
        b_frames=min(int(one_of((0, 0, 1, 2, 3, 7))), gop - 1) if codec in ("h264", "hevc", "mpeg4") else 0,
        open_gop=bool(rng.random() < 0.4),
        pix_fmt=one_of(("yuv420p", "yuv420p", "yuv420p10le", "yuv420p12le")) if codec == "hevc" else "yuv420p",
        full_range=bool(rng.random() < 0.1),
        colour=one_of(("bt601", "bt709", "bt2020", "untagged")),
        crf=one_of((None, None, 10, 40)),
        jitter=int(rng.integers(99)) if container != "avi" and rng.random() < 0.15 else None,
        scene=one_of((0, 0, 3, 7)),
        seed=int(rng.integers(1000)),
        number=width > 100 and height > 60,
        params=some({"h264": _X264, "hevc": _X265}.get(codec, {})),
        options=options or some(_MPEG4 if codec == "mpeg4" else {}),
    )


def random_pictures(seed: int, recipe: Recipe) -> Iterator[Image]:
    """What such a clip shows, the same for the same seed: in four of ten the recipe's moving shapes, in the others a
    part or all of them still, flashing, fading, or with noise."""
    rng = np.random.default_rng([seed, 1])
    kind = str(rng.choice(["", "", "", "", "still part", "still", "rarely", "flash", "fade", "noise"]))
    box = tuple(slice(*sorted(rng.integers(0, side + 1, 2).tolist())) for side in (recipe.height, recipe.width))
    if rng.random() < 0.5:  # all lines from the top, or from a line to the bottom
        box = (slice(0, box[0].stop) if rng.random() < 0.5 else slice(box[0].start, None), slice(None))
    still: Image | None = None
    for number, picture in enumerate(paint(recipe)):
        if still is None or (kind == "rarely" and number % 9 == 0):
            still = picture.copy()
        if kind == "still part":
            picture[box] = still[box]
        elif kind in ("still", "rarely"):
            picture = still
        elif kind == "flash" and number % 3 == 0:
            picture = 255 - picture
        elif kind == "fade":
            picture = (picture * abs(np.sin(number / 5))).astype(np.uint8)
        elif kind == "noise":
            picture = picture ^ rng.integers(0, 1 << int(rng.integers(1, 8)), picture.shape, dtype=np.uint8)
        yield picture
