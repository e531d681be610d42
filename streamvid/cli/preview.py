"""`streamvid preview`."""

from __future__ import annotations

import argparse

from streamvid.cli.output import Commands, add_command, add_common, add_options, call, console, open_dataset
from streamvid.loader.calls import sampler_of, transform_of
from streamvid.text import format_bytes, format_count, printable


def add_parser(commands: Commands) -> None:
    """Add the command and its options."""
    description = "Write an HTML file that shows a dataset: frames of some clips, histograms, a table to filter."
    command = add_command(commands, "preview", _run, "show a dataset as a web page", description)
    add_common(command, "dataset where keys revision roots")
    add_options(command, {
        "--out FILE=preview.html": "default: %(default)s",
        "--clips N=48": "clips whose frames are shown; default 48",
        "--sampling SAMPLER=Uniform(8)":
            "which frames, as a loader is given it: 'Window(16, fps=8)'; default: %(default)s",
        "--transform TRANSFORM": "what is done to them, likewise: 'Transform(resize=256, crop=224)'",
        "--seed N=0": "of the choice of clips, frames and augmentation",
    })  # fmt: skip


# Heavy modules are imported when the command runs, so that --help and wrong options are answered at once.


def _run(arguments: argparse.Namespace) -> int:
    sampling = sampler_of(arguments.sampling)
    transform = None if arguments.transform is None else transform_of(arguments.transform)
    from streamvid.inspection.preview.preview import preview

    dataset = open_dataset(arguments.dataset, arguments, arguments.revision)
    report = call(preview, arguments, dataset=dataset, sampling=sampling, transform=transform, progress=True)
    bad = f", {report.bad:,} of them bad" if report.bad else ""
    full = "; more would make it too large" if report.full else ""
    console().print(
        f"wrote {printable(arguments.out)} ({format_bytes(report.bytes)}): frames of {report.strips:,} "
        f"of {format_count(report.clips, 'clip')}{bad}{full}"
    )
    return 0
