"""A frame sampler as text, such as ``Window(16, fps=8)``, for the command line."""

from __future__ import annotations

import ast
from typing import Final

from streamvid.errors import InputError
from streamvid.sampling.base import FrameSampler
from streamvid.sampling.explicit import Frames
from streamvid.sampling.spread import All, Keyframes, RandomFrames, Uniform
from streamvid.sampling.windows import MultiRate, TiledWindows, Window

_KINDS: Final = {
    kind.__name__: kind for kind in (Window, TiledWindows, Uniform, MultiRate, Keyframes, RandomFrames, Frames, All)
}


def sampler_of(text: str) -> FrameSampler:
    """The sampler that Python's text makes: its name, and numbers, texts and lists of these. Nothing is evaluated.

    Raises:
        InputError: it is none, or has options that it cannot have.
    """
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError
        kind = _KINDS[call.func.id]
        given = [ast.literal_eval(one) for one in call.args]
        named = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    except (ValueError, SyntaxError, KeyError, RecursionError, MemoryError):
        raise InputError(
            f"{text[:100]!r} is no sampling: write one such as 'Window(16, fps=8)', of {', '.join(_KINDS)}"
        ) from None
    try:
        sampler: FrameSampler = kind(*given, **named)
    except TypeError as error:
        raise InputError(f"{text[:100]}: {error}") from error
    return sampler
