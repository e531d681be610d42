"""Samplings and transforms as options, written as in Python: ``Window(16, fps=8)``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, cast

from streamvid.checks import did_you_mean
from streamvid.errors import InputError

if TYPE_CHECKING:
    from streamvid.sampling.base import FrameSampler
    from streamvid.transform.spec import Transform

_LONGEST: Final = 2000
"""Characters of an option: Python's parser takes longer ones, but is not made for them."""


def sampler_of(text: str) -> FrameSampler:
    """The sampler that `--sampling` names; errors as of `_call`."""
    import streamvid as sv

    kinds = (sv.Window, sv.TiledWindows, sv.Uniform, sv.MultiRate, sv.Keyframes, sv.RandomFrames, sv.Frames, sv.ByClip)
    known = {kind.__name__: kind for kind in (*kinds, sv.All)}
    return cast("FrameSampler", _call(text, known, "--sampling 'Window(16, fps=8)'"))


def transform_of(text: str) -> Transform:
    """The transform that `--transform` names; errors as of `_call`."""
    from streamvid.transform.spec import Transform

    return cast("Transform", _call(text, {"Transform": Transform}, "--transform 'Transform(resize=256, crop=224)'"))


def _call(text: str, known: Mapping[str, Callable[..., object]], example: str) -> object:
    """What a call makes: a name of `known`, with or without ``sv.`` before it, and literals. Nothing is evaluated.

    Raises:
        InputError: it is no such call, or what is called refuses the arguments.
    """
    option = example.partition(" ")[0]
    try:
        call = ast.parse(text[:_LONGEST].strip(), mode="eval").body
        call = call if isinstance(call, ast.Call) else ast.Call(call, [], [])
        name = ast.unparse(call.func).removeprefix("sv.").removeprefix("streamvid.")
        arguments = [ast.literal_eval(one) for one in call.args]
        keywords = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise InputError(f"{option} {text[:100]!r} cannot be read: write it as in Python, {example}") from None
    if name not in known:
        meant = did_you_mean(name, known) or f"there are {', '.join(known)}, as {example}"
        raise InputError(f"{option} knows no {name[:100]!r}: {meant}")
    try:
        return known[name](*arguments, **keywords)
    except (InputError, TypeError) as error:
        raise InputError(f"{option}: {str(error).replace('__init__() ', '')}") from error
