"""Checks of users' arguments, with errors that name the argument and its limits.

NumPy's numbers are accepted like Python's; True and False are no numbers.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, Final, ParamSpec, TypeGuard, TypeVar

import numpy as np

from streamvid.errors import InputError

MAX_COUNT: Final = (1 << 31) - 1
"""The largest count that samplers and loaders accept: the product of two fits into int64."""
MAX_WORKERS: Final = 1024
"""The most worker processes of a command: each takes some 100 MB, and files of this process."""

_MOST_OPTIONS: Final = 1000
"""Longer lists are data, such as the ten million numbers of a sampler, and too long to convert."""

_MOST_SHOWN: Final = 200

P = ParamSpec("P")
R = TypeVar("R")


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number of Python or NumPy."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.bool_)


def is_real(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number of Python or NumPy, or a Fraction, within the range of a float."""
    try:
        return (is_integer(value) or isinstance(value, float | Fraction | np.floating)) and math.isfinite(value)
    except OverflowError:
        return False


def exact(value: float | Fraction) -> Fraction:
    """A number for which `is_real` holds as a fraction, without rounding."""
    # Fraction does not know all of NumPy's numbers.
    return Fraction(value.item() if isinstance(value, np.generic) else value)


def decimal(number: float) -> Fraction:
    """A number as it is written: 0.1 is 1/10, not the nearest binary fraction."""
    return Fraction(str(number))


def fraction(text: str) -> Fraction:
    """A number as text, exactly: 24, 29.97, 1e-3 or 30000/1001. Raises ValueError or ZeroDivisionError if the text is
    no number or its exponent has four digits or more: writing 1e999999999 out would take for ever."""
    if re.search(r"[eE][+-]?[0_]*[1-9][0-9_]{3}", text):
        raise ValueError(f"{text[:40]!r} is out of range")
    return Fraction(text)


def shown(value: object) -> str:
    """A value as an error shows it: on one line, where arrays take several, and cut off, as a list may be data."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def boolean(value: object, name: str) -> bool:
    """The value, which must be True or False.

    Raises:
        InputError: the value is neither.
    """
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{name} must be True or False; it is {shown(value)}")
    return bool(value)


def integer(value: object, name: str, *, least: int = 1, most: int | None = MAX_COUNT) -> int:
    """The value as an int.

    Args:
        value: what the user gave.
        name: the argument's name, for the error.
        least, most: its limits, both allowed; `most` None for no upper limit.

    Raises:
        InputError: the value is no whole number, or outside the limits.
    """
    if not is_integer(value) or value < least or (most is not None and value > most):
        # The message names MAX_COUNT only if the value exceeds it.
        both = most is not None and (most != MAX_COUNT or (is_integer(value) and value > most))
        limits = f"from {least} to {most}" if both else f"of at least {least}"
        raise InputError(f"{name} must be a whole number {limits}; it is {shown(value)}")
    return int(value)


def check(valid: bool, value: object, name: str, what: str) -> None:
    """Raise InputError, with `what` the argument must be, if it is not valid."""
    if not valid:
        raise InputError(f"{name} must be {what}; it is {shown(value)}")


def position(value: Any, name: str, count: int) -> int:
    """The value as an int, which must be an index of one of `count` things. A tensor with one number counts as that
    number.

    Raises:
        InputError: the value is no whole number, or no index of them.
    """
    try:
        found = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = -1
    if not 0 <= found < count:
        raise InputError(f"{name} must be a whole number from 0 to {count - 1}; it is {value!r}"[:300])
    return found


def listed(value: Any, name: str, members: str) -> list[Any]:
    """The members of a list, or of any other iterable except a text; those of an array or tensor as Python's own.

    Args:
        members: a word for the members, for the error.

    Raises:
        InputError: the value cannot be iterated over: None, a number, a text, an array or tensor without dimensions.
    """
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return list(value.tolist() if hasattr(value, "tolist") else value)
    except TypeError:
        raise InputError(f"{name} must be a list of {members}; it is {value!r}"[:300]) from None


_SYNONYMS: Final = {
    "h265": "hevc", "h.265": "hevc", "x265": "hevc", "libx265": "hevc", "avc": "h264",
    "append": "pack", "update": "index", "list": "ls", "delete": "forget", "remove": "forget", "check": "verify",
}  # fmt: skip
"""Other names of codecs and commands, of which another name may be more like one, or none."""


def did_you_mean(value: object, names: Iterable[str]) -> str:
    """A question for the end of an error message, which proposes the known name most like a misspelt one, in letters of
    either case; "" if none is similar."""
    known = {name.lower(): name for name in names}
    given = value.lower() if isinstance(value, str) else ""
    near = difflib.get_close_matches(meant if (meant := _SYNONYMS.get(given, "")) in known else given, known, 1)
    return f"did you mean {known[near[0]]!r}?" if near else ""


def one_of(value: object, allowed: Sequence[str | None], name: str) -> None:
    """Raise InputError unless the value is one of the allowed words, or None where that is one; the message proposes
    the word most like the value."""
    if not isinstance(value, str | None) or value not in allowed:
        text = f"{name} must be one of {', '.join(map(repr, allowed))}; it is {shown(value)}"
        raise InputError("; ".join(filter(None, (text, did_you_mean(value, filter(None, allowed))))))


def plain(value: Any) -> Any:
    """Convert NumPy scalars to Python's, in short lists and tuples, too; other values are returned unchanged.

    Options are hashed by their repr and written as JSON: 8 and np.int64(8) must come out alike.
    """
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple) and len(value) <= _MOST_OPTIONS:
        items = [plain(item) for item in value]
        return value if all(map(operator.is_, items, value)) else type(value)(items)
    return value


def suggest_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that its errors say what to write: for an unknown keyword, the most similar known one; for
    too many positional arguments, those that need no keyword. NumPy scalars are passed on as Python's. Arguments
    annotated as `bool` must be True or False, because a text such as "no" would count as true; constructors check
    theirs themselves.

    Raises:
        TypeError: at the call, as Python itself would; with the name that was probably meant.
        InputError: at the call, if such an argument is neither True nor False.
    """
    parameters = inspect.signature(function).parameters
    names = [
        name
        for name, parameter in parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD and name not in ("self", "cls", "_")
    ]
    is_constructor = function.__name__ == "__init__"
    owner = function.__qualname__.removesuffix(".__init__")
    flags = [] if is_constructor else [name for name in names if parameters[name].annotation == "bool"]
    named = [name for name in names if parameters[name].kind is inspect.Parameter.KEYWORD_ONLY]
    free = [name for name in names if name not in named]
    most = sum(parameter.kind < inspect.Parameter.VAR_POSITIONAL for parameter in parameters.values())

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if named and len(args) > most:
            raise TypeError(f"{owner} takes {', '.join(free)} by position; name the others, such as {named[0]}=…")
        for name in kwargs:
            if name not in names:
                longer = next((f"did you mean {known!r}?" for known in names if name in known), "")
                hint = _elsewhere(name, names) or did_you_mean(name, names) or longer or f"it takes {', '.join(names)}"
                raise TypeError(f"{owner} has no argument {name!r}; {hint}")
        for name in flags:
            if name in kwargs:
                boolean(kwargs[name], name)
        return function(*map(plain, args), **{name: plain(value) for name, value in kwargs.items()})

    return checked


def _elsewhere(name: str, names: Sequence[str]) -> str:
    """A hint for a keyword that other libraries, or other classes of this one, have: which argument to use here
    instead."""
    for argument, keywords, remedy in _ELSEWHERE:
        if name in keywords and argument in names:
            return remedy
    return ""


_ELSEWHERE: Final = (
    (
        "batch_sampler",
        {"sampling", "transform", "columns", "seed"},
        "that is an argument of ClipDataset: GpuDataLoader(ClipDataset(path, sampling=…), …)",
    ),
    (
        "num_threads",
        {"pin_memory", "prefetch_factor", "persistent_workers", "worker_init_fn", "multiprocessing_context"},
        "batches are made ahead and on the device, in threads: leave it out",
    ),
    ("seed", {"generator", "random_state"}, "all random numbers follow from seed="),
    (
        "retry_for",
        {"timeout", "retries", "max_retries", "download_retry", "download_timeout"},
        "retry_for= says for how many seconds a storage that does not answer is asked again",
    ),
    ("world_size", {"num_replicas"}, "the number of ranks is world_size=, and found by itself under a launcher"),
    ("crop", {"crop_size", "center_crop"}, "the size of a crop is crop=, of one in the centre with random_crop=False"),
    (
        "options",
        {"cutting", "clip", "scenes", "exact_cuts", "transcode", "codec", "short_side", "max_fps", "gop", "crf", "fps",
         "decode", "track", "compatible_with"},
        "how videos are cut, transcoded and checked is given as options=PackOptions(…)",
    ),
    ("batch_sampler", {"collate_fn", "batch_fn"}, "a batch is a dict of tensors: change it in the loop"),
    ("batch_fn", {"collate_fn", "batch_transform"}, "a function of the finished batch is given as batch_fn="),
    (
        "steps_per_epoch",
        {"sampler", "batch_sampler"},
        "shuffle= chooses the order; GpuDataLoader(ClipDataset(path, …), sampler=…) takes any sampler",
    ),
    ("horizontal_flip", {"hflip", "flip", "random_flip"}, "horizontal_flip= takes its probability, 0.5 for half"),
    ("mean", {"normalize", "normalise"}, "give mean= and std=, in units of the full range, 0 to 1"),
    (
        "frames",
        {"n", "count", "length", "size", "clip_len", "clip_length", "frames_per_clip", "sequence_length",
         "num_segments"},
        "the number of frames is frames=",
    ),
    ("fps", {"frame_rate", "rate"}, "frames a second are fps="),
    (
        "sampling",
        {"num_frames", "n_frames", "frames", "clip_len", "clip_length", "frames_per_clip", "sequence_length", "stride",
         "frame_rate", "fps", "step"},
        "sampling= chooses the frames, such as sampling=Window(frames=16, fps=8)",
    ),
    (
        "dataset",
        {"where", "filter", "keys", "weights"},
        "clips are chosen by Subset(dataset, where=…, keys=…, weights=…), which goes in the dataset's place",
    ),
    (
        "transform",
        {"resize", "crop", "size", "mean", "std", "dtype", "layout", "horizontal_flip", "transforms"},
        "frames are transformed by transform=, such as transform=Transform(resize=256, crop=224)",
    ),
)  # fmt: skip
"""(argument that the function must have, unknown keywords, hint)."""

C = TypeVar("C", bound=type[Any])


def suggesting(cls: C) -> C:
    """`suggest_keywords` for the constructor of a class, dataclasses included."""
    cls.__init__ = suggest_keywords(cls.__init__)
    return cls
