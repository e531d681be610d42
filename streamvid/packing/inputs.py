"""Finds sources: files, folders, globs and lists → one ordered list of videos with names and keys.

It opens lists, but no videos.
"""

from __future__ import annotations

import glob
import itertools
import logging
import operator
import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from braceexpand import braceexpand
from fsspec.utils import glob_translate
from natsort import natsort_keygen

from streamvid.errors import DatasetError, InputError
from streamvid.packing.images import find_sequence
from streamvid.packing.keys import duplicates, make_keys
from streamvid.packing.lerobot import find_episodes, is_lerobot
from streamvid.packing.lists import is_list, raw_labels, read_list, video_column
from streamvid.packing.metadata import MetadataLists
from streamvid.packing.places import Found, Places, count_extensions, path_parts, source_of
from streamvid.packing.source_video import SourceVideo
from streamvid.packing.tar_members import TAR_EXTENSIONS, find_in_tars
from streamvid.storage import filesystem
from streamvid.storage.client import has_ranges
from streamvid.storage.explain import AccessRefused, StorageUnavailable
from streamvid.storage.url import has_extension, is_local, is_within, local_path, redact, split_query, unsigned
from streamvid.video.containers import IMAGE_EXTENSIONS, VIDEO_EXTENSIONS

log = logging.getLogger(__name__)

_NAMED: Final = (*VIDEO_EXTENSIONS, *TAR_EXTENSIONS, *IMAGE_EXTENSIONS)


def find_sources(
    inputs: Sequence[str],
    lists: MetadataLists,
    *,
    places: Places | None = None,
    images: bool = False,
    folders: bool = False,
    present: Collection[str] = (),
) -> list[SourceVideo]:
    """Find all videos of the inputs, in natural order of their names (`clip2` before `clip10`).

    Images are sources if they are named or listed, or if an input has no videos; and so are members of tars.

    Args:
        inputs: files, folders (searched recursively), globs, or lists (.csv, .jsonl, .parquet with a column `path` or
            `video`; relative paths are relative to the list), local or on an object store. A video that is given more
            than once is packed once.
        lists: collects the other columns of the lists.
        places: for `index`: also find episodes of LeRobot datasets, and tars beside videos, and set `root` and `file`.
        images: whether every image of the inputs is a source, also beside videos and in folders of numbered images.
        folders: whether the class of a video without a label, as from a list or a `.cls` member of a tar, is the folder
            directly below the input that contains it, as in torchvision's `ImageFolder`; none if it lies in no folder.
        present: the names of the videos of a dataset to which these are added.

    Raises:
        InputError: an input does not exist or has no video, or a list cannot be used; or, with `folders`, no video lies
            in a folder; or several inputs have a video of a name that is present.
    """
    if not inputs:
        raise InputError("nothing to pack: name files, folders, globs or lists of videos")
    chosen = _merged(inputs, lists, places, images)
    if folders:
        chosen = [*map(_with_folder, chosen)]
        if not any(len(video.parts) > video.depth + 1 for video in chosen):
            raise InputError(
                "no video lies in a folder below the input: labels by folder are of cats/1.mp4, dogs/2.mp4, …"
            )
    names = _names(chosen)
    _check_present(chosen, names, present)
    natural = natsort_keygen()
    # "a1" and "a01" are equal in natural order; the name breaks the tie, so that the order of inputs does not matter.
    order = sorted(range(len(chosen)), key=lambda i: (natural(names[i]), names[i]))
    short = [chosen[i].name or names[i] for i in order]
    again = set(duplicates([posixpath.splitext(name)[0].casefold() for name in short]))
    keys = make_keys([names[i] if at in again else short[at] for at, i in enumerate(order)])
    return [source_of(chosen[i], names[i], key, places) for i, key in zip(order, keys, strict=True)]


def _merged(inputs: Sequence[str], lists: MetadataLists, places: Places | None, images: bool) -> list[Found]:
    """All videos of the inputs, each once.

    Raises:
        InputError: an input cannot be used, or two of them disagree about a video.
    """
    found: dict[tuple[str, ...], Found] = {}
    for given in inputs:
        try:
            videos = _find_all(given, lists, places, images)
        except StorageUnavailable:
            raise
        except DatasetError as error:
            raise InputError(str(error)) from error
        for video in videos:
            known = found.setdefault(video.parts, video)
            url = unsigned(video.path)
            if unsigned(known.path) != url and not is_local(url) and redact(url) != url:
                raise InputError(f"{redact(video.path)} is given more than once, with other secrets: leave one out")
            if is_list(given) and _columns(known, lists) != _columns(video, lists):
                raise InputError(f"{redact(video.path)} is listed more than once with different columns: keep one row")
    return [*found.values()]


def _check_present(chosen: Sequence[Found], names: Sequence[str], present: Collection[str]) -> None:
    """Raise InputError if a video that is named after its root, because several inputs have one of its name, may be the
    one that the dataset has."""
    for video, name in zip(chosen, names, strict=True):
        below = "/".join(video.parts[video.depth :])
        if below != name and below in present and name not in present:
            raise InputError(
                f"{below}: the dataset has a video of this name, and more than one input has one, as "
                f"{redact(video.path)}, so which of them it has is not known; pack the new ones into a dataset of "
                "their own, and join both (streamvid merge --prefix)"
            )


def _find_all(given: str, lists: MetadataLists, places: Places | None, images: bool) -> list[Found]:
    """All videos of an input, including those in its tars."""
    if places is not None and is_lerobot(given):
        return [*map(places.check, find_episodes(given, places.cameras, lists))]
    if places is not None and places.cameras:
        raise InputError(f"cameras are those of a LeRobot dataset, and {redact(given)} is none: leave out --camera")
    address, query = split_query(given)
    if has_extension(address, TAR_EXTENSIONS) and (paths := _expanded(address)) != [address]:
        found = [_single(path + query) for path in paths]
    else:
        taken = (*VIDEO_EXTENSIONS, *TAR_EXTENSIONS * (places is not None), *IMAGE_EXTENSIONS * images)
        found = _find(given, lists, taken, sequences=not images)
    if places is not None:
        found = [places.check(video) for video in found if not places.is_own(video)]
    is_tar = [not video.problem and has_extension(video.path, TAR_EXTENSIONS) for video in found]
    tars = [*itertools.compress(found, is_tar)]
    hosts = () if places is None else places.hosts
    inside = find_in_tars(tars, lists, hosts, images=images, members=places is not None) if tars else []
    return [*itertools.compress(found, map(operator.not_, is_tar)), *inside]


def _expanded(address: str) -> list[str]:
    """The paths that a pattern with braces means; a path itself if it is none, or if there is a file of that name."""
    if "{" not in address or (is_local(address) and os.path.isfile(local_path(address))):
        return [address]
    try:
        return [*dict.fromkeys(braceexpand(address))]
    except ValueError:  # braces that do not match
        return [address]


def _with_folder(video: Found) -> Found:
    """The video, labelled with its folder: see `find_sources`. Not by its name, of which inputs may be a part."""
    in_folder = len(video.parts) > video.depth + 1
    return replace(video, label=video.parts[video.depth]) if video.label is None and in_folder else video


def _columns(video: Found, lists: MetadataLists) -> tuple[int | str | None, ...]:
    """The label and the other columns of a video in lists."""
    return video.label, *map(lists.json, video.rows)


def _names(videos: list[Found]) -> list[str]:
    """Names: paths below the roots. If two are equal, components of the roots are prepended until they differ."""
    depths = [video.depth for video in videos]
    while True:
        names = ["/".join(video.parts[depth:]) for video, depth in zip(videos, depths, strict=True)]
        colliding = [i for i in duplicates(names) if depths[i] > 0]
        if not colliding:
            return names
        for i in colliding:
            depths[i] -= 1


def _find(given: str, lists: MetadataLists, extensions: tuple[str, ...], *, sequences: bool) -> list[Found]:
    shown = redact(given)
    local = is_local(given)
    if local:
        given = local_path(given)
    if local and os.path.isdir(given):
        return _below(given, _walk(given), shown, extensions, sequences=sequences)
    if local and os.path.isfile(given):
        if given.startswith(("/dev/", "/proc/")):  # such as /dev/stdin, which is another file in a worker process
            given = os.path.realpath(given)
        return _listed(given, lists) if is_list(given) else [_single(given)]
    ranged = has_ranges(given)
    magic = glob.has_magic(given if ranged else urlsplit(given).path)
    if not ranged and not magic and has_extension(given, _NAMED):
        return [_single(given)]  # fsspec would read a whole file from a web server to look for links in it
    if magic and (local or not ranged or not filesystem.exists(given)):
        return _globbed(given, shown, extensions)
    if local:
        raise InputError(_no_source(given, shown))
    if is_list(given):
        return _listed(given, lists)
    try:
        files = filesystem.list_files(given, recursive=True)
    except AccessRefused:  # the bucket may give the file all the same
        if not has_extension(given, _NAMED):
            raise
        return [_single(given)]
    if [path_parts(file) for file in files] == [path_parts(given)]:
        return [_single(given)]
    return _below(given, files, shown, extensions, sequences=sequences)


def _no_source(path: str, shown: str) -> str:
    """Why a local path is neither a file nor a folder."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return f"no such file or folder: {shown}"
    except OSError as error:
        return f"cannot look at {shown}: {error.strerror}; check the path and who may read its folders"
    return f"{shown} is a pipe, a device or a socket: write what it holds to a file first"


def _single(path: str) -> Found:
    parts = path_parts(path)
    return Found(path, parts, len(parts) - 1)


def _walk(folder: str, *, once: bool = True) -> list[str]:
    """All files below a folder. Follows symbolic links, but visits each folder once; for a pattern (not `once`) under
    each of its names, but not below itself, so that cycles end."""
    files: list[str] = []
    seen: dict[tuple[int, int], list[str]] = defaultdict(list)

    def fail(error: OSError) -> None:
        if not once and isinstance(error, PermissionError):  # such as the lost+found of a disk
            log.warning("%s may not be searched: its files are left out", error.filename)
            return
        raise InputError(f"cannot search {error.filename}: {error.strerror}; make it readable or leave it out")

    for parent, folders, names in os.walk(folder, followlinks=True, onerror=fail):
        stat = os.stat(parent)
        before = seen[stat.st_dev, stat.st_ino]
        if before and (once or any(is_within(parent, path) for path in before)):
            folders.clear()
            continue
        before.append(parent)
        folders.sort()  # sorted, so that of two links to one folder the same one is followed on any file system
        files += [os.path.join(parent, name) for name in names]
    return files


def _below(
    folder: str, files: Sequence[str], shown: str, extensions: tuple[str, ...], *, sequences: bool
) -> list[Found]:
    root = path_parts(folder)
    # Hidden files are skipped: macOS writes a "._clip.mp4" beside each clip.mp4 that it copies.
    parts = {path: path_parts(path) for path in files}
    files = [path for path in files if not any(part.startswith(".") for part in parts[path][len(root) :])]
    videos = [path for path in files if has_extension(path, extensions)]
    found = _sequences(files, root, {parts[path][:-1] for path in videos}) if sequences else []
    videos = videos or ([] if found else _others(files))
    folders, taken = {sequence.parts for sequence in found}, set(videos)
    left_out = [path for path in files if path not in taken and parts[path][:-1] not in folders]
    if not found and not videos:
        raise InputError(
            f"no videos in {shown}: looked for files with an extension of a video, such as .mp4, .mkv or .avi (all are "
            f"in docs/packing.md), for images, and for folders of nothing but numbered images"
            f"{count_extensions(left_out, '; found ')}"
        )
    _tell_left_out(left_out, shown)
    return [Found(path, parts[path], len(root)) for path in videos] + found


def _others(files: Sequence[str]) -> list[str]:
    """The sources of an input without videos: its images, or its tars if it has no images."""
    for extensions in (IMAGE_EXTENSIONS, TAR_EXTENSIONS):
        if others := [path for path in files if has_extension(path, extensions)]:
            return others
    return []


def _sequences(files: Iterable[str], root: tuple[str, ...], taken: Container[tuple[str, ...]]) -> list[Found]:
    """Folders that are image sequences, as paths that end in '/'. `taken` are folders with videos, which are no
    sequences."""
    folders: dict[str, list[str]] = defaultdict(list)
    for path in files:
        parent, _, name = path.rpartition("/")
        folders[parent].append(name)
    found = []
    for parent, names in folders.items():
        parts = path_parts(parent + "/")
        if parts not in taken and find_sequence(names):
            # If the input folder itself is a sequence, its name is that of the folder, as for a file that is given by
            # name.
            found.append(Found(parent + "/", parts, min(len(root), len(parts) - 1)))
    return found


def _tell_left_out(files: Sequence[str], shown: str) -> None:
    """Log the number of files in an input that do not count as videos."""
    images = any(has_extension(path, IMAGE_EXTENSIONS) for path in files)
    if files:
        log.warning(
            "%s: files without an extension of a video are left out%s; to pack one, name it%s",
            shown,
            count_extensions(files),
            ", or give --images to pack each image as a clip" * images,
        )


def _globbed(pattern: str, shown: str, extensions: tuple[str, ...]) -> list[Found]:
    if is_local(pattern):
        matches = [path for path in _matching(pattern) if os.path.isfile(path)]
    else:
        matches = filesystem.glob(pattern)
    videos = [path for path in matches if has_extension(path, extensions)] or _others(matches)
    taken = set(videos)
    left_out = [path for path in matches if path not in taken]
    if not videos:
        raise InputError(
            f"no videos match {shown}: looked for files with an extension of a video, such as .mp4, .mkv or .avi (all "
            f"are in docs/packing.md), or of an image{count_extensions(left_out, '; found ')}"
        )
    _tell_left_out(left_out, shown)
    fixed = []  # the components before the first with a wildcard
    for part in path_parts(pattern)[:-1]:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return [Found(path, path_parts(path), len(fixed)) for path in videos]


def _matching(pattern: str) -> list[str]:
    """The local paths that a pattern matches. Python's glob would follow `**` through links in cycles, and leave out
    folders that cannot be read without a word."""
    parts = pattern.split("/")
    if "**" not in parts:
        return glob.glob(pattern)
    fixed = "/".join(itertools.takewhile(lambda part: not glob.has_magic(part), parts))
    whole = glob_translate("/".join(part if part == "**" else re.sub(r"\*+", "*", part) for part in parts))
    hidden = "/." in pattern.removeprefix(fixed)
    found = _walk(fixed or "/", once=False) if os.path.isdir(fixed or "/") else []
    return [path for path in found if re.match(whole, path) and (hidden or "/." not in path.removeprefix(fixed))]


def _listed(path: str, lists: MetadataLists) -> list[Found]:
    shown = redact(path)
    parsed = read_list(path)
    table = parsed.table
    urls = ("url",) if "url" in table.schema.names else ()
    column, cells = video_column(table, ("path", "video", *urls), shown)
    if not cells:
        raise InputError(f"{shown} lists no videos: add rows to it")
    address, query = split_query(path)
    folder = posixpath.dirname(address)
    given = [local_path(cell) if "://" in cell and is_local(cell) else cell for cell in cells]  # file:///…
    below = [posixpath.join(folder, cell) + ("" if "?" in cell else query) for cell in given]
    videos = [found if is_local(cell) else cell for found, cell in zip(below, given, strict=True)]
    if not is_local(path) and any(map(is_local, videos)):
        raise InputError(
            f"{shown} is remote and names {next(filter(is_local, videos))[:200]!r}: it cannot name local files"
        )
    # Folders of images end in '/': local ones are recognised, remote ones must be listed with it.
    videos = [v.rstrip("/") + "/" if is_local(v) and os.path.isdir(local_path(v)) else v for v in videos]
    parts = [path_parts(video) for video in videos]
    above = path_parts(folder)
    root = len(above)
    if any(p[:root] != above for p in parts):
        # If not all are below the list's folder, names are relative to their lowest common folder.
        levels = zip(*(p[:-1] for p in parts), strict=False)
        root = sum(1 for _ in itertools.takewhile(lambda level: len(set(level)) == 1, levels))
    labels = raw_labels(table, shown) if "label" in table.schema.names else [None] * len(cells)
    first = lists.add(parsed, (column, "label"), shown)
    return [
        Found(video, p, root, label, (first + i,))
        for i, (video, p, label) in enumerate(zip(videos, parts, labels, strict=True))
    ]
