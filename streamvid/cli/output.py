"""Output of the commands: plain text, exit codes, error messages."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from rich.console import Console

from streamvid.errors import InputError
from streamvid.storage.retry import COMMAND_SECONDS
from streamvid.text import printable

if TYPE_CHECKING:
    from streamvid.dataset.dataset import Dataset

T = TypeVar("T")
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The subcommands of a parser."""

SHOWN: Final = 20
"""Rejected videos or problems that are printed; the others are counted."""
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DECIMAL: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
FAILED, UNUSABLE, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141
"""Exit codes: problems found by verify, an error, and 128 + the number of SIGINT and SIGPIPE, as of other signals."""


def parse_size(text: str) -> int:
    """``256MiB``, ``256M``, ``1GB`` or plain bytes → bytes. MB and the like are powers of 1000, M and MiB of 1024."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?b)?\s*", text, re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write 256MiB, 1GB or a number of bytes")
    number, prefix, suffix = match.groups()
    units = _DECIMAL if (suffix or "").lower() == "b" else _UNITS
    size = int(Fraction(number) * units[prefix.lower()])
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive size")
    return size


def console() -> Console:
    """A console for plain text: no markup in names, and no wrapping unless stdout is a terminal."""
    tty = sys.stdout.isatty()
    return _Output(markup=False, emoji=False, highlight=False, soft_wrap=not tty, width=None if tty else 200)


class _Output(Console):
    def on_broken_pipe(self) -> None:
        # rich would exit with 1, the exit code of `verify` for a damaged dataset.
        raise BrokenPipeError


def fail(text: str, code: int) -> int:
    """Print an error on stderr; returns the exit code."""
    with contextlib.suppress(OSError):  # stderr is a full disk or a closed pipe, but the exit code still tells
        print(f"streamvid: {printable(text)}", file=sys.stderr, flush=True)
    return code


_TYPES: Final[Mapping[str, Callable[[str], object]]] = {
    "N": int, "PIXELS": int, "FRAMES": int, "PRICE": float, "SECONDS": float, "SIZE": parse_size,
}  # fmt: skip
"""Types of values by their names in usage lines; all others are text."""
_SELECTING: Final = ("CONDITION", "FILE", "LIST")
"""Values of options that select or describe clips: who gives two of them means both."""
_COMMON: Final = {
    "dataset": ("dataset DATASET", "folder or URL"),
    "where": ("--where CONDITION", "condition on columns, such as 'seconds >= 2 and \"dog\" in caption'"),
    "keys": ("--keys FILE", "file of keys: .csv, .jsonl or .parquet with a column key, otherwise a key per line"),
    "workers": ("--workers N", "number of processes; default: one per core"),
    "overwrite": ("--overwrite", "replace an existing dataset"),
    "json": ("--json", "print JSON, for scripts"),
    "revision": ("--revision N", "revision of the dataset; default: the newest"),
    "roots": (
        "--roots PLACE...",
        "another folder or URL from which the dataset may read files; repeatable",
    ),
}
"""Arguments that several commands have."""


def common(names: str) -> dict[str, str]:
    """Arguments that several commands have, in the form of `add_options`."""
    return dict(_COMMON[name] for name in names.split())


Options = Mapping[str, str | Mapping[str, str]]


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    what: str,
    options: Options,
    details: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    *,
    description: str = "",
    needs: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Add a subcommand, with a short and a long description, and its arguments in the form of `add_options`. `needs`
    maps options that do nothing without another option to that option."""
    command = commands.add_parser(name, help=what, description=description or f"{what[0].upper()}{what[1:]}.")
    command.set_defaults(run=run, needs=needs)
    add_options(command, options, details)


def add_options(
    command: argparse._ActionsContainer, options: Options, details: Mapping[str, Mapping[str, Any]]
) -> None:
    """Add arguments, each by its usage line and its help.

    ``--flag`` takes no value, ``--name VALUE`` one, ``--name VALUE=8`` has a default, ``--name VALUE...`` is
    repeatable, ``--name this|that`` is one of these words, and ``name VALUE`` is positional.

    Args:
        options: help by usage; or groups of exclusive arguments, under ``one of`` (one is required) or ``at most one
            of``.
        details: further arguments of argparse's `add_argument`, by the name of the option.
    """
    for usage, text in options.items():
        if not isinstance(text, str):
            add_options(command.add_mutually_exclusive_group(required=usage == "one of"), text, details)
            continue
        name, _, form = usage.partition(" ")
        form, _, default = form.partition("=")
        value = form.removesuffix("...")
        more: dict[str, Any] = {"metavar": value, "type": _TYPES.get(value, str)}
        if not form:
            more = {"action": "store_true"}
        elif "|" in form:
            more = {"choices": tuple(form.split("|"))}
        elif value != form:
            more |= {"action": "append", "default": []}
        elif value in _SELECTING and not default:
            more["action"] = _Once
        if default:
            more["default"] = default
        command.add_argument(name, help=text, **more | dict(details.get(name.lstrip("-").replace("-", "_"), {})))


class _Once(argparse.Action):
    """Stores the value of an option that may be given once. Of others the last one counts, as usual."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        if getattr(namespace, self.dest) is not self.default:
            raise argparse.ArgumentError(self, "it is given more than once, and takes one value")
        setattr(namespace, self.dest, values)


def check_needs(arguments: argparse.Namespace, given: Sequence[str]) -> None:
    """Raise InputError for an option in the command line that does nothing without another option, which is missing."""
    for option, other in getattr(arguments, "needs", {}).items():
        used = any(argument.partition("=")[0] == option for argument in given)
        if used and not getattr(arguments, other.lstrip("-").replace("-", "_")):
            raise InputError(f"{option} does nothing without {other}: give that, too, or leave out {option}")


def call(function: Callable[..., T], arguments: argparse.Namespace, **others: object) -> T:
    """Call a function with the options named like its parameters, some of them replaced by `others`."""
    names = inspect.signature(function).parameters
    return function(**{name: value for name, value in vars(arguments).items() if name in names} | others)


def open_dataset(path: str, arguments: argparse.Namespace, revision: int | None = None) -> Dataset:
    """Open a dataset, or a revision of it, with the command's `--roots`."""
    from streamvid.dataset.dataset import Dataset

    return Dataset.open(path, retry_for=COMMAND_SECONDS, roots=arguments.roots, revision=revision)


def print_some(lines: Sequence[str], indent: str = "") -> None:
    """Print the first `SHOWN` lines, and the number of further ones."""
    out = console()
    for line in lines[:SHOWN]:
        out.print(indent + printable(line))
    if len(lines) > SHOWN:
        out.print(f"{indent}and {len(lines) - SHOWN:,} more")
