"""`streamvid forget`, `annotate`, `repair` and `ledger`: a dataset is changed; the steps in which a clip was seen."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from streamvid.cli.output import FAILED, Commands, add_command, call, common, console, print_some
from streamvid.text import format_count, printable


def add_parser(commands: Commands) -> None:
    """Add the commands and their options."""
    what = "never deliver some clips again, and remove their bytes on request"
    add_command(commands, "forget", _forget, what, common("dataset keys roots") | {
        "--purge": "also remove their bytes, without --keys those of all forgotten clips; ends older revisions",
        "--cache-dir FOLDER": "the cache_dir of loaders on this machine; default: the user's cache folder",
    }, needs={"--cache-dir": "--purge"})  # fmt: skip
    table = {"table TABLE": ".parquet, .csv or .jsonl with a column key and the new columns"}
    what = "add columns to a dataset, or replace their values, by key"
    add_command(commands, "annotate", _annotate, what, common("dataset roots") | table)
    what = "replace bad clips by sound ones, packed again from their videos"
    add_command(commands, "repair", _repair, what, common("dataset workers roots") | {
        "sources SOURCE": "folder, file, 'glob' or list of the videos that the dataset was packed from",
        "--quarantine FILE": "quarantine of a run with the bad clips: a file or the folder",
    }, {"sources": {"nargs": "+"}, "quarantine": {"required": True}})  # fmt: skip
    add_command(commands, "ledger", _ledger, "list the steps of a run in which a clip was seen", {
        "state RUN": "file with a StreamLoader's state: JSON, or written by torch.save",
        "key KEY": "key of the clip",
        **common("json roots"),
    })  # fmt: skip


# Heavy modules are imported when the command runs, so that --help and wrong options are answered at once.


def _forget(arguments: argparse.Namespace) -> int:
    from streamvid.revising.forget import forget

    report = call(forget, arguments)
    out = console()
    text = (
        f"{format_count(report.clips, 'clip')} forgotten, {report.forgotten:,} altogether; revision {report.revision}"
    )
    out.print(text)
    if arguments.purge:
        shards = format_count(report.shards, "shard")
        out.print(f"{format_count(report.purged, 'clip')} purged, {shards} written anew; older revisions are gone")
    if report.foreign:
        out.print(f"{format_count(report.foreign, 'clip')} of these lie in files outside of the dataset, which stay")
    return 0


def _annotate(arguments: argparse.Namespace) -> int:
    from streamvid.revising.annotate import annotate

    report = call(annotate, arguments)
    parts = (("added", report.added), ("replaced", report.replaced))
    what = " and ".join(f"{kind} {', '.join(names)}" for kind, names in parts if names)
    console().print(printable(f"{what} of {format_count(report.clips, 'clip')}; revision {report.revision}"))
    if report.purged:
        console().print(f"{format_count(report.purged, 'row')} of purged clips left out")
    return 0


def _repair(arguments: argparse.Namespace) -> int:
    from streamvid.revising.repair import repair

    report = call(repair, arguments)
    out = console()
    shards = format_count(report.shards, "shard")
    out.print(f"{format_count(len(report.repaired), 'clip')} repaired in {shards}; revision {report.revision}")
    left = [f"{key}: its video is not among the sources" for key in report.missing]
    left += [f"{key}: {why}" for key, why in report.bad.items()]
    print_some(left)
    return FAILED if left else 0


def _ledger(arguments: argparse.Namespace) -> int:
    from streamvid.revising.ledger import ledger

    seen = call(ledger, arguments, run=arguments.state)
    if arguments.json:
        print(json.dumps([asdict(delivery) for delivery in seen], indent=1))
        return 0
    out = console()
    out.print(f"seen {format_count(len(seen), 'time')}")
    for delivery in seen:
        more = "" if delivery.sample == 0 else f", sample {delivery.sample}"
        more += "" if delivery.valid else ", not valid"
        place = f"rank {delivery.rank} place {delivery.place}{more}"
        out.print(f"epoch {delivery.epoch} step {delivery.step} (of the run {delivery.run_step}) {place}")
    return 0
