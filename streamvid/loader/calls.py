"""Parses samplers and transforms from options of the command, written as in Python: ``Window(16, fps=8)``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, cast

from streamvid.checks import did_you_mean, integer
from streamvid.errors import InputError

if TYPE_CHECKING:
    from streamvid.sampling.base import FrameSampler
    from streamvid.transform.spec import Transform, Views


def sampler_of(text: str) -> FrameSampler:
    """The sampler that `--sampling` names; errors as in `_call`."""
    import streamvid as sv
    from streamvid.sampling.base import check_sampler

    kinds = (sv.Window, sv.TiledWindows, sv.Uniform, sv.MultiRate, sv.Keyframes, sv.RandomFrames, sv.Frames, sv.ByClip)
    known = {kind.__name__: kind for kind in (*kinds, sv.All)} | {"Fraction": _rate}
    made = _call(text, known, "--sampling 'Window(16, fps=8)'")
    check_sampler(made)
    return cast("FrameSampler", made)


def _rate(frames: object, seconds: object = 1) -> Fraction:
    """A rate as `repr` writes it: ``Fraction(30000, 1001)``."""
    return Fraction(
        integer(frames, "a Fraction's number", most=None), integer(seconds, "a Fraction's number", most=None)
    )


def transform_of(text: str) -> Transform | Views:
    """The transform, or the views of several, that `--transform` names; errors as in `_call`."""
    from streamvid.transform.spec import Transform, Views

    known = {"Transform": Transform, "Views": Views}
    return cast("Transform | Views", _call(text, known, "--transform 'Transform(resize=256, crop=224)'"))


def _call(text: str, known: Mapping[str, Callable[..., object]], example: str) -> object:
    """The object that a call constructs: of a name in `known`, with or without ``sv.`` before it, whose arguments are
    literals or such calls. Nothing is evaluated.

    Raises:
        InputError: the text is no such call, or the constructor refuses the arguments.
    """
    option = example.partition(" ")[0]
    try:
        call = ast.parse(text.strip(), mode="eval").body
        return _made(call if isinstance(call, ast.Call) else ast.Call(call, [], []), known, example)
    except InputError:
        raise
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise InputError(f"{option} {text[:100]!r} cannot be read: write it as in Python, {example}") from None


def _made(call: ast.Call, known: Mapping[str, Callable[..., object]], example: str) -> object:
    """The object that a call of a known name makes. Raises ValueError for other calls."""

    def value(node: ast.expr) -> object:
        if isinstance(node, ast.Call):
            return _made(node, known, example)
        if isinstance(node, ast.Dict):
            return {
                ast.literal_eval(key or node): value(item) for key, item in zip(node.keys, node.values, strict=True)
            }
        if isinstance(node, ast.List | ast.Tuple):
            items = list(map(value, node.elts))
            return items if isinstance(node, ast.List) else tuple(items)
        return ast.literal_eval(node)

    option = example.partition(" ")[0]
    name = ast.unparse(call.func).removeprefix("sv.").removeprefix("streamvid.")
    try:
        arguments = [value(argument) for argument in call.args]
        keywords = {str(keyword.arg): value(keyword.value) for keyword in call.keywords}
    except TypeError as error:
        raise ValueError from error
    if name not in known:
        meant = did_you_mean(name, known) or f"there are {', '.join(known)}, as {example}"
        raise InputError(f"{option} knows no {name[:100]!r}: {meant}")
    try:
        return known[name](*arguments, **keywords)
    except InputError as error:
        raise InputError(f"{option}: {error}") from error
    except TypeError as error:
        raise InputError(f"{option}: {str(error).replace('.__init__()', '')}; write it as {example}") from error
