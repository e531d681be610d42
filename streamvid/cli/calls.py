"""Options that are written as in Python, such as ``Window(16, fps=8)``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, Final

from streamvid.checks import did_you_mean
from streamvid.errors import InputError

_LONGEST: Final = 2000
"""Characters of an option: Python's parser is not made for more of a stranger."""


def parse_call(text: str, known: Mapping[str, Callable[..., Any]], option: str) -> Any:
    """The object that a call makes: a name of `known`, with or without ``sv.`` before it, and literals as arguments.
    Nothing else is evaluated.

    Args:
        text: the call; the name alone is one without arguments.
        known: what may be called, by name.
        option: the option's name, for errors.

    Raises:
        InputError: it is no such call, or what is called refuses the arguments.
    """
    example = f"write {option} as in Python, such as {_EXAMPLES.get(option, next(iter(known)))!r}"
    try:
        call = ast.parse(text[:_LONGEST].strip(), mode="eval").body
        call = call if isinstance(call, ast.Call) else ast.Call(call, [], [])
        name = ast.unparse(call.func).removeprefix("sv.").removeprefix("streamvid.")
        arguments = [ast.literal_eval(one) for one in call.args]
        keywords = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords if one.arg is not None}
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError) as error:
        raise InputError(f"{text[:80]!r} cannot be read: {example}") from error
    if name not in known or len(keywords) < len(call.keywords):
        raise InputError(
            "; ".join(filter(None, (f"{option} knows no {name[:80]!r}: {example}", did_you_mean(name, known))))
        )
    try:
        return known[name](*arguments, **keywords)
    except InputError as error:
        raise InputError(f"{option}: {error}") from error
    except TypeError as error:
        raise InputError(f"{option}: {str(error).replace('__init__() ', '')}") from error


_EXAMPLES: Final = {"--sampling": "Window(16, fps=8)", "--transform": "Transform(resize=256, crop=224)"}
