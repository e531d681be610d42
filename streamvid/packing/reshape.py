"""Makes new datasets from existing ones: merges several, splits one into parts, or writes one into other shards."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import pyarrow as pa

from streamvid.arrays import Int64
from streamvid.checks import check, integer, listed, suggest_keywords
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.concat import ConcatDataset
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.revisions import dataset_path
from streamvid.dataset.selection import delivered
from streamvid.errors import InputError
from streamvid.packing.destination import DATASET_EXISTS, read_state
from streamvid.packing.keys import duplicates, make_keys
from streamvid.packing.pack import MAX_SHARD_SIZE, SHARD_SIZE, JobRun
from streamvid.packing.parts import Shares, order_of, parts_by_column, parts_by_keys, parts_by_share
from streamvid.packing.report import PackReport
from streamvid.packing.rewrite import Rewrite, RewriteSpec, plan_rewrite, run_rewrite
from streamvid.storage import filesystem
from streamvid.storage.url import AnyPath, given_path, join, redact

log = logging.getLogger(__name__)

_DATASETS: Final = "paths, URLs or datasets"
Given = Dataset | str | os.PathLike[str]
"""A dataset, or the path or URL of one."""


@suggest_keywords
def merge(
    datasets: Sequence[Given],
    destination: AnyPath,
    *,
    prefix: bool = False,
    copy: bool = False,
    shard_size: int = SHARD_SIZE,
    name: str | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> PackReport:
    """Make one dataset of several, the clips of the first one first.

    Class names are united in alphabetical order; a clip has no value in columns that its dataset lacks. Forgotten clips
    are left out. If a killed call is repeated, it resumes.

    Args:
        datasets: paths, URLs or datasets.
        destination: a folder or an object-store prefix.
        prefix: put the dataset's name in front of each key, so that datasets may have keys in common.
        copy: copy the videos into shards; if False, they stay in place, and the new dataset reads them there.
        shard_size: with `copy`, most bytes of a shard's tar, unless a single clip is larger.
        name: the dataset's name; by default the last component of the destination.
        workers: number of processes, by default one per core.
        overwrite: replace a dataset at the destination.
        progress: show a progress bar if stderr is a terminal.

    Raises:
        InputError: two clips have the same key, columns of one name have incompatible types, or an option is invalid.
        DatasetError: a dataset or a clip cannot be read.
    """
    integer(shard_size, "shard_size", most=MAX_SHARD_SIZE)
    run = JobRun(given_path(destination, "destination"), overwrite, workers=workers, progress=progress)
    given = [] if isinstance(datasets, os.PathLike | ClipSource) else listed(datasets, "datasets", _DATASETS)
    if not given:
        raise InputError(f"datasets must be a list of {_DATASETS}; it is {datasets!r}"[:300])
    opened = [_opened(path) for path in given]
    source = opened[0] if len(opened) == 1 and not prefix else ConcatDataset(opened)
    rows = _delivered(source)
    keys = _merged_keys(source, rows, prefix=prefix) if isinstance(source, ConcatDataset) else None
    rewrite = Rewrite(source, rows, keys, copy=copy)
    settings = {"command": "merge"}
    return run_rewrite(plan_rewrite(rewrite, run.destination, shard_size, name, settings), run)


@suggest_keywords
def split(
    dataset: Given,
    destination: AnyPath,
    *,
    shares: Shares | None = None,
    keys: Mapping[str, Sequence[str] | str | os.PathLike[str]] | None = None,
    column: str | None = None,
    seed: int = 0,
    group: str = "source",
    copy: bool = False,
    shard_size: int = SHARD_SIZE,
    workers: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> dict[str, PackReport]:
    """Make several datasets of one, in folders below the destination with the parts' names. Clips in no part, and
    forgotten clips, are left out. If a killed call is repeated, it resumes.

    With `shares`, the part of a clip depends only on its group and the seed, not on other clips, their order or shards:
    it stays the same when clips are added or forgotten. So parts have their shares only approximately.

    Args:
        dataset: a path, URL or dataset.
        destination: a folder or an object-store prefix.
        shares: the share of each part by name, such as ``{"train": 0.9, "test": 0.1}``; together at most 1.
        keys: the keys of each part by name: a list, or the path or URL of a file of them, as in `streamvid.Subset`.
        column: a column, for each of whose values there is a part; clips without a value are in no part.
        seed: seed of a split by shares.
        group: with `shares`, a column: clips with the same value come into the same part; "key": no groups. By default
            the clips of a video stay together, so that no video is in both training and test data.
        copy, shard_size, workers, overwrite, progress: as in `merge`.

    Returns:
        The report of each part, by name.

    Raises:
        InputError: an option is invalid, a key is that of no clip or in two parts, or a part would be empty.
        DatasetError: the dataset, or a clip, cannot be read.
    """
    integer(shard_size, "shard_size", most=MAX_SHARD_SIZE)
    run = JobRun(given_path(destination, "destination"), overwrite, workers=workers, progress=progress)
    integer(seed, "seed", least=0, most=None)
    _check_rule(shares, keys, column, group)
    opened = _opened(dataset)
    rows = _delivered(opened)
    settings: dict[str, object] = {"command": "split", "column": column}
    if shares is not None:
        parts = parts_by_share(opened, rows, shares, seed=seed, group=group)
        settings |= {"seed": seed, "group": group}
    elif keys is not None:
        parts = parts_by_keys(opened, rows, keys)
    else:
        assert column is not None
        parts = parts_by_column(opened, rows, column)
    specs: dict[str, RewriteSpec] = {}
    for name, chosen in parts.items():
        place, rewrite = join(run.destination, name), Rewrite(opened, chosen, None, copy=copy)
        specs[name] = plan_rewrite(rewrite, place, shard_size, name, {**settings, "part": name})
        state, mine = read_state(place), specs[name].job.fingerprint
        if not overwrite and state.manifest is not None and mine not in (state.packed_by, state.claimed_by):
            raise InputError(DATASET_EXISTS.format(redact(place)))
    if others := _other_parts(run.destination, parts):
        log.warning(
            "%s has parts of another split, too: %s; remove them, as their clips may be in these parts",
            redact(run.destination), ", ".join(others),
        )  # fmt: skip
    return {
        name: run_rewrite(spec, replace(run, destination=join(run.destination, name), started=time.monotonic()))
        for name, spec in specs.items()
    }


def _check_rule(shares: object, keys: object, column: object, group: object) -> None:
    """Raise InputError unless a split is by exactly one rule, of a type that `split` takes."""
    if sum(rule is not None for rule in (shares, keys, column)) != 1:
        raise InputError("a split is by shares, by keys or by a column: give one of the three")
    for option, given in {"shares": shares, "keys": keys}.items():
        check(isinstance(given, Mapping | None), given, option, "a dict with the name of each part, such as 'train'")
    for option, text in {"column": "" if column is None else column, "group": group}.items():
        check(isinstance(text, str), text, option, "the name of a column")


def _other_parts(destination: str, parts: Container[str]) -> list[str]:
    """The names of parts that an earlier split has left at the destination."""
    found = []
    for name, details in filesystem.list_details(destination).items():
        if details.is_folder and name not in parts:
            with suppress(InputError):  # what is not streamvid's
                report = read_state(join(destination, name)).report or {}
                options = report.get("options")
                if isinstance(options, dict) and (options.get("command"), options.get("part")) == ("split", name):
                    found.append(name)
    return found


@suggest_keywords
def reshard(
    dataset: Given,
    destination: AnyPath,
    *,
    shard_size: int = SHARD_SIZE,
    shuffle: bool = False,
    seed: int = 0,
    name: str | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> PackReport:
    """Copy a dataset into shards of another size, or a dataset of videos in place into shards. The MP4s of packed clips
    are copied byte for byte; forgotten clips are left out. If a killed call is repeated, it resumes.

    Args:
        dataset: a path, URL or dataset.
        destination: a folder or an object-store prefix.
        shard_size: the most bytes of tar in a shard, unless a single clip is larger.
        shuffle: put the clips into a random order, a function of their keys and the seed.
        seed: seed of that order.
        name: the new dataset's name; by default that of `dataset`.
        workers, overwrite, progress: as in `merge`.

    Raises:
        InputError: an option is invalid.
        DatasetError: the dataset, or a clip, cannot be read.
    """
    integer(shard_size, "shard_size", most=MAX_SHARD_SIZE)
    integer(seed, "seed", least=0, most=None)
    run = JobRun(given_path(destination, "destination"), overwrite, workers=workers, progress=progress)
    opened = _opened(dataset)
    rows = _delivered(opened)
    settings: dict[str, object] = {"command": "reshard"}
    if shuffle:
        rows = rows[order_of(opened, rows, seed)]
        settings["seed"] = seed
    rewrite, name = Rewrite(opened, rows, None, copy=True), opened.manifest.name if name is None else name
    return run_rewrite(plan_rewrite(rewrite, run.destination, shard_size, name, settings), run)


def _opened(dataset: Given) -> Dataset:
    return dataset if isinstance(dataset, Dataset) else Dataset.open(dataset_path(dataset))


def _delivered(source: ClipSource) -> Int64:
    """int64 [clips]: the rows without forgotten clips."""
    rows = delivered(source)
    if not len(rows):
        raise InputError(f"all clips of {redact(source.path)} are forgotten: a dataset needs at least one clip")
    return rows


def _merged_keys(source: ConcatDataset, rows: Int64, *, prefix: bool) -> list[str]:
    """The keys of the clips in the merged dataset.

    Raises:
        InputError: two keys would be equal.
    """
    of = source.part_of(rows)
    if not prefix:
        keys: list[str] = source.columns.get("key").take(pa.array(rows)).to_pylist()
        # A key that two parts have is prefixed by the part's name, even if one of the clips is forgotten.
        plain = [key.rpartition("/")[2] for key in keys]
        found = duplicates(plain)
        if found:
            key = plain[found[0]]
            parts = dict.fromkeys(int(of[at]) for at in found if plain[at] == key)
            paths = [redact(source.parts[part].path) for part in parts]
            if len(parts) > len({*paths}):
                raise InputError(f"{paths[0]} is given more than once: give each dataset once")
            raise InputError(
                f"{' and '.join(dict.fromkeys(paths))} have a clip {key!r} each: merge them with --prefix, which puts "
                "the dataset's name before each key"
            )
        return plain
    keys = []
    for number, (part, dataset) in enumerate(zip(source.parts, source.datasets, strict=True)):
        own = dataset.columns.get("key").take(pa.array(rows[of == number] - part.first))
        # A name that cannot begin a key becomes one as a path without an extension does.
        keys += [make_keys([f"{part.name}-{key}."])[0] for key in own.to_pylist()]
    if found := duplicates(keys):
        raise InputError(
            f"with the names of their datasets two clips are {keys[found[0]]!r}: rename one of the datasets"
        )
    return keys
