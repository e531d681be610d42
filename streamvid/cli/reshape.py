"""`streamvid merge`, `split` and `reshard`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamvid.cli.output import Commands, add_command, call, common, console, open_dataset
from streamvid.cli.pack import print_summary
from streamvid.errors import InputError
from streamvid.storage.url import redact
from streamvid.text import printable

if TYPE_CHECKING:
    from streamvid.packing.report import PackReport


def add_parser(commands: Commands) -> None:
    """Add the commands and their options."""
    size = {"--shard-size SIZE=256MiB": "size of the new shards; default 256MiB"}
    copied = {"--copy": "copy the videos into shards of the new dataset", **size}
    shared = common("workers overwrite roots")
    to = {"destination NEW": "folder or s3://bucket/prefix for the dataset"}
    what = "make one dataset of several, without copying their videos"
    add_command(commands, "merge", _merge, what, {
        "datasets DATASET": "folder or URL",
        **to,
        "--prefix": "put the dataset's name before each key",
        "--name NAME": "name of the dataset; default: its folder's",
        **copied,
        **shared,
    }, {"datasets": {"nargs": "+"}}, needs={"--shard-size": "--copy"})  # fmt: skip
    what = "make several datasets of one, without copying its videos"
    add_command(commands, "split", _split, what, common("dataset revision") | {
        "one of": {
            "--shares SHARES": "random parts of these shares, such as train=0.9,test=0.1",
            "--keys FILES...": "a file of keys for each part: .csv, .jsonl or .parquet with a column key, otherwise a "
            "key per line; repeatable",
            "--column NAME": "a part for each value of a column",
        },
        "destination FOLDER": "folder or s3://bucket/prefix; each part is a dataset FOLDER/NAME",
        "--seed N=0": "seed of a split by shares; default 0",
        "--group COLUMN=source":
            "with --shares: clips of one value in this column stay together; default: source (key: each by itself)",
        **copied,
        **shared,
    }, {"shares": {"metavar": "NAME=SHARE,…"}, "keys": {"metavar": "NAME=FILE", "default": None}},
    needs={"--shard-size": "--copy", "--seed": "--shares", "--group": "--shares"})  # fmt: skip
    what = "copy a dataset, also one of videos in place, into shards of another size"
    add_command(commands, "reshard", _reshard, what, common("dataset revision") | to | {
        "--shuffle": "put the clips into a random order",
        "--seed N=0": "seed of that order; default 0",
        "--name NAME": "name of the new dataset; default: that of the old one",
        **size,
        **shared,
    }, needs={"--seed": "--shuffle"})  # fmt: skip


def _merge(arguments: argparse.Namespace) -> int:
    from streamvid.packing.reshape import merge

    _print(call(merge, arguments, datasets=[open_dataset(path, arguments) for path in arguments.datasets]), "merged")
    return 0


def _split(arguments: argparse.Namespace) -> int:
    from streamvid.packing.reshape import split

    shares = None if arguments.shares is None else _named(arguments.shares.split(","), "--shares", "train=0.9,test=0.1")
    keys = None if arguments.keys is None else _named(arguments.keys, "--keys", "train=train.txt")
    dataset = open_dataset(arguments.dataset, arguments, arguments.revision)
    reports = call(split, arguments, dataset=dataset, shares=shares, keys=keys)
    for report in reports.values():
        _print(report, "split off")
    rest = len(dataset) - len(dataset.forgotten) - sum(report.manifest.clips for report in reports.values())
    if rest:
        console().print(f"{rest:,} of {len(dataset):,} clips are in no part")
    return 0


def _print(report: PackReport, done: str) -> None:
    """Print what was done, and the datasets that the new dataset reads."""
    print_summary(report, done)
    if report.manifest.roots:
        console().print(f"  its videos stay in {printable(', '.join(map(redact, report.manifest.roots)))}")


def _named(given: Sequence[str], option: str, example: str) -> dict[str, str]:
    """NAME=VALUE, several, by name. Raises InputError if one is none, or a name comes twice."""
    found: dict[str, str] = {}
    for argument in given:
        name, is_there, value = (part.strip() for part in argument.partition("="))
        if not (name and is_there and value) or name in found:
            raise InputError(f"{option} {argument}: give each part once, as {example}")
        found[name] = value
    return found


def _reshard(arguments: argparse.Namespace) -> int:
    from streamvid.packing.reshape import reshard

    dataset = open_dataset(arguments.dataset, arguments, arguments.revision)
    print_summary(call(reshard, arguments, dataset=dataset), "copied")
    return 0
