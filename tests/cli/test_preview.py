"""`streamvid preview`, and samplers written as options."""

from __future__ import annotations

from pathlib import Path

import pytest

import streamvid as sv
from streamvid.cli.main import main
from streamvid.errors import InputError
from streamvid.loader.calls import sampler_of, transform_of
from tests.support.bad_clips import make_dataset
from tests.support.refused import assert_refused


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("cli"), [("h264", "mp4")] * 2)


def test_it_writes_a_page(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["preview", str(packed)]) == 0
    out, err = capsys.readouterr()
    assert "wrote preview.html (" in out
    assert "frames of 2 of 2 clips" in out
    assert err == ""
    options = ["--sampling", "sv.Window(4, fps=8, start='first')", "--transform", "Transform(resize=48, crop=(32, 40))"]
    assert (
        main(
            [
                "preview",
                str(packed),
                "--out",
                "a.html",
                "--out",
                "b.html",
                *options,
                "--where",
                "frames > 1",
                "--clips",
                "1",
            ]
        )
        == 0
    )
    text = (tmp_path / "b.html").read_text()
    assert "Window(frames=4, fps=8, start=&#x27;first&#x27;), Transform(resize=48, crop=(32, 40))" in text
    assert text.count('width="40" height="32"') == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sampling", "Window(16"], "write it as in Python"),
        (["--sampling", "Windw(16)"], "did you mean 'Window'?"),
        (["--sampling", "Window(frame=16)"], "Window has no argument 'frame'"),
        (
            ["--sampling", "Window()"],
            "required positional argument: 'frames'; write it as --sampling 'Window(16, fps=8)'",
        ),
        (["--sampling", "Window(-1)"], "--sampling: Window(frames)"),
        (["--transform", "Transform(crop=0)"], "--transform: Transform(crop)"),
        (["--where", "colour == 3"], "colour"),
        (["--clips", "-3"], "clips must be a whole number"),
        (["--out", "."], "no page of streamvid"),
        (["--out", "~/page.html"], "only a shell replaces ~"),
    ],
)
def test_errors_are_one_sentence(
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(capsys, ["preview", str(packed), *options], said)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("Window(16, fps=8)", sv.Window(16, fps=8)),
        (" sv.Window( 16,pad = 'none' ) ", sv.Window(16, pad="none")),
        ("streamvid.Uniform(frames=4)", sv.Uniform(4)),
        ("MultiRate([(8, 1.0), (16, 2.0)])", sv.MultiRate([(8, 1.0), (16, 2.0)])),
        ("All", sv.All()),
        ("All()", sv.All()),
    ],
)
def test_calls(text: str, made: object) -> None:
    assert sampler_of(text) == made


@pytest.mark.parametrize(
    "text",
    [
        "",
        "16",
        "__import__('os').system('touch pwned')",
        "Window(__import__('os'))",
        "Window(16).sample",
        "Window(*[16])",
        "Window(**{'frames': 16})",
        "(lambda: Window)()",
        "Window(16); Uniform(3)",
        "[Window(16)]",
        "Window('16')",
        "Window(16, fps=9" + "9" * 5000 + ")",
        "Window(" * 500,
        "Window(16, fps=float('nan'))",
        "Window(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)",
        "\0",
        "Window(16)\nimport os",
    ],
)
def test_nothing_else_is_evaluated(text: str) -> None:
    with pytest.raises(InputError, match="--sampling"):
        sampler_of(text)


LOW, HIGH = sv.Transform(crop=16, horizontal_flip=0.5), sv.Transform(crop=32, horizontal_flip=0.5)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("Transform(crop=16, horizontal_flip=0.5)", LOW),
        (
            "Views(low=Transform(crop=16, horizontal_flip=0.5), high=sv.Transform(crop=32, horizontal_flip=0.5), "
            "share=('crop', 'flip'))",
            sv.Views(low=LOW, high=HIGH, share=("crop", "flip")),
        ),
        ("sv.Views({'a': Transform(crop=16, horizontal_flip=0.5)})", sv.Views({"a": LOW})),
    ],
)
def test_transforms_and_views(text: str, made: object) -> None:
    assert transform_of(text) == made
    assert transform_of(repr(made)) == made


@pytest.mark.parametrize(
    "text",
    [
        "Views(a=__import__('os').system('touch pwned'))",
        "Views(a=open('pwned', 'w'))",
        "Views(a=Transform(crop=open('pwned', 'w')))",
        "Views({**{}})",
        "Views({'a': (Transform(crop=16),)})",
        "Views({Transform(): 1})",
        "Views(a=Window(3))",
        "Views(a=Transform(crop=16), share=('rotate',))",
        "Views(a=Transform(" + "crop=(" * 200,
        "Transform(Transform())",
        "Views()",
        "Views(a=1)",
    ],
)
def test_views_evaluate_nothing_else(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="--transform"):
        transform_of(text)
    assert not list(tmp_path.iterdir())
