"""`streamvid forget`, `annotate`, `repair` and `ledger`: a dataset is changed; the steps in which a clip was seen."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from streamvid.cli.output import FAILED, SHOWN, add_roots, console
from streamvid.text import format_count, printable


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands and their options."""
    _add_forget(commands)
    _add_annotate(commands)
    _add_repair(commands)
    _add_ledger(commands)


def _add_forget(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    what = "let no run be given some clips any more, and remove their bytes on request"
    command = commands.add_parser("forget", help=what, description=f"{what.capitalize()}.")
    command.add_argument("dataset", metavar="DATASET", help="folder or URL")
    command.add_argument(
        "--keys", metavar="FILE", help="of keys: .csv or .parquet with a column key, else one per line"
    )
    command.add_argument(
        "--purge",
        action="store_true",
        help="remove their bytes, too; without --keys those of all that are forgotten; ends older revisions",
    )
    command.add_argument(
        "--cache-dir", metavar="FOLDER", help="where loaders on this machine keep shards, if not in theirs"
    )
    add_roots(command)
    command.set_defaults(run=_forget)


def _add_annotate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    what = "add columns to a dataset, or replace their values, by key"
    command = commands.add_parser("annotate", help=what, description=f"{what.capitalize()}.")
    command.add_argument("dataset", metavar="DATASET", help="folder or URL")
    command.add_argument("table", metavar="TABLE", help=".parquet, .csv or .jsonl with a column key, and others")
    add_roots(command)
    command.set_defaults(run=_annotate)


def _add_repair(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    what = "put sound clips in the place of bad ones"
    command = commands.add_parser("repair", help=what, description=f"{what.capitalize()}.")
    command.add_argument("dataset", metavar="DATASET", help="folder or URL")
    command.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="folder, file, 'glob' or list of the videos it was packed from",
    )
    command.add_argument(
        "--quarantine", required=True, metavar="FILE", help="of a run, or its folder: which clips are bad"
    )
    command.add_argument("--workers", type=int, metavar="N", help="processes; default: one per core")
    add_roots(command)
    command.set_defaults(run=_repair)


def _add_ledger(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    what = "say in which steps of a run a clip was seen"
    command = commands.add_parser("ledger", help=what, description=f"{what.capitalize()}.")
    command.add_argument("state", metavar="RUN", help="a file with a StreamLoader's state: JSON, or of torch.save")
    command.add_argument("key", metavar="KEY", help="of the clip")
    command.add_argument("--json", action="store_true", help="print JSON, for scripts")
    add_roots(command)
    command.set_defaults(run=_ledger)


# Heavy modules are imported when the command runs, so that --help and wrong options are answered at once.


def _forget(arguments: argparse.Namespace) -> int:
    from streamvid.revising.forget import forget

    report = forget(
        arguments.dataset,
        arguments.keys,
        purge=arguments.purge,
        cache_dir=arguments.cache_dir,
        roots=arguments.roots,
    )
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

    report = annotate(arguments.dataset, arguments.table, roots=arguments.roots)
    parts = (("added", report.added), ("replaced", report.replaced))
    what = " and ".join(f"{kind} {', '.join(names)}" for kind, names in parts if names)
    console().print(printable(f"{what} of {format_count(report.clips, 'clip')}; revision {report.revision}"))
    if report.purged:
        console().print(f"{format_count(report.purged, 'row')} of purged clips left out")
    return 0


def _repair(arguments: argparse.Namespace) -> int:
    from streamvid.revising.repair import repair

    report = repair(
        arguments.dataset,
        arguments.sources,
        quarantine=arguments.quarantine,
        workers=arguments.workers,
        roots=arguments.roots,
    )
    out = console()
    shards = format_count(report.shards, "shard")
    out.print(f"{format_count(len(report.repaired), 'clip')} repaired in {shards}; revision {report.revision}")
    for key in report.missing[:SHOWN]:
        out.print(printable(f"{key}: its video is not among the sources"))
    for key, why in list(report.bad.items())[:SHOWN]:
        out.print(printable(f"{key}: {why}"))
    left = len(report.missing) + len(report.bad)
    if left > SHOWN:
        out.print(f"{format_count(left, 'clip')} are not repaired")
    return FAILED if left else 0


def _ledger(arguments: argparse.Namespace) -> int:
    from streamvid.revising.ledger import ledger

    seen = ledger(arguments.state, arguments.key, roots=arguments.roots)
    if arguments.json:
        print(json.dumps([asdict(one) for one in seen], indent=1))
        return 0
    out = console()
    out.print(f"seen {format_count(len(seen), 'time')}")
    for one in seen:
        more = ("" if one.sample == 0 else f", sample {one.sample}") + ("" if one.valid else ", not valid")
        place = f"rank {one.rank} place {one.place}{more}"
        out.print(f"epoch {one.epoch} step {one.step} (of the run {one.run_step}) {place}")
    return 0
