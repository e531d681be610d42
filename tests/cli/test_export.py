"""`streamvid export`."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamvid.cli.main import main
from tests.support import pbtxt

GIVEN = ["--transform", "Transform(resize=256, crop=224, mean=0.45, std=0.225)", "--frames", "16"]


def test_it_writes_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--triton", str(tmp_path), *GIVEN, "--stride", "2", "--name", "clips"]) == 0
    assert capsys.readouterr().out.split(":")[0] == f"wrote {tmp_path / 'clips'}"
    config = pbtxt.parse((tmp_path / "clips" / "config.pbtxt").read_text())
    assert config["output"] == [{"name": "video", "data_type": "TYPE_FP32", "dims": [3, 16, 224, 224]}]


def test_views_are_outputs(tmp_path: Path) -> None:
    pair = "Views(low=Transform(crop=32, layout='CFHW'), high=sv.Transform(crop=64, layout='CFHW'))"
    assert main(["export", "--triton", str(tmp_path), "--frames", "3", "--transform", pair]) == 0
    config = pbtxt.parse((tmp_path / "streamvid" / "config.pbtxt").read_text())
    assert [(one["name"], one["dims"]) for one in config["output"]] == [
        ("low", [3, 3, 32, 32]),
        ("high", [3, 3, 64, 64]),
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--transform", "Transform(crop=0)"], "--transform: Transform(crop)"),
        (["--transform", "Transform(dtype='bfloat16')"], "DALI writes no bfloat16"),
        (["--frames", "0"], "frames must be a whole number"),
        (["--device", "tpu"], "device must be one of"),
        (["--name", "a/b"], "name must be"),
    ],
)
def test_errors_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert main(["export", "--triton", str(tmp_path), *GIVEN, *options]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err
    assert not list(tmp_path.iterdir())
