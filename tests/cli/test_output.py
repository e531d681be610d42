"""Options that reach functions by their names."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import streamvid as sv
from streamvid.cli.main import _parser
from streamvid.cli.output import call, parse_size
from streamvid.inspection.listing import list_clips
from streamvid.inspection.preview.preview import preview

_CUTTING = {"clip", "scenes", "tail", "shortest_scene"}
_TRANSCODING = {"codec", "short_side", "max_fps", "gop", "crf"}
_OPENING = {"roots", "revision"}


@pytest.mark.parametrize(
    ("command", "functions", "own"),
    [
        ("pack", (sv.pack, sv.PackOptions), _CUTTING | _TRANSCODING),
        ("index", (sv.index,), _CUTTING),
        ("merge", (sv.merge,), {"roots"}),
        ("split", (sv.split,), _OPENING),
        ("reshard", (sv.reshard,), _OPENING),
        ("ls", (list_clips,), _OPENING | {"json"}),
        ("extract", (sv.extract,), _OPENING | {"key"}),
        ("preview", (preview,), _OPENING),
        ("verify", (sv.verify,), {"dataset"}),
        ("forget", (sv.forget,), set()),
        ("annotate", (sv.annotate,), set()),
        ("repair", (sv.repair,), set()),
        ("ledger", (sv.ledger,), {"state", "json"}),
        ("export", (sv.dali.export,), set()),
    ],
)
def test_every_option_is_a_parameter_or_the_commands_own(
    command: str, functions: tuple[Callable[..., Any], ...], own: set[str]
) -> None:
    """An option whose function calls it otherwise would be left out in silence."""
    (commands,) = [one for one in _parser()._actions if isinstance(one, argparse._SubParsersAction)]
    options = {action.dest for action in commands.choices[command]._actions} - {"help", "verbose"}
    parameters = {name for function in functions for name in inspect.signature(function).parameters}
    assert options - parameters == own


def test_call_prefers_what_the_command_gives() -> None:
    def made(first: int, second: int = 2, third: int = 3) -> tuple[int, int, int]:
        return first, second, third

    given = argparse.Namespace(first=10, second=20, verbose=True)
    assert call(made, given, second=21) == (10, 21, 3)


def test_sizes_that_no_float_has() -> None:
    assert parse_size("0.3MB") == 300_000
    assert parse_size("9" * 400) == int("9" * 400)
