"""The exceptions raised for bad input; any other exception is a defect of streamvid.

StreamvidError
├── InputError (also a ValueError): an option, path, list or label
├── DatasetError: a dataset
└── VideoError: a video or clip
"""

from __future__ import annotations


class StreamvidError(Exception):
    """Base of all errors raised for bad input; its text is one sentence that names what is wrong and what to do.

    Attributes:
        path: the file that could not be read, without secrets; None if it is about something else.
    """

    path: str | None = None


class InputError(StreamvidError, ValueError):
    """An option, path, list or label that cannot be used as given."""


class DatasetError(StreamvidError):
    """A dataset that is missing, damaged, or of a version this library does not read."""


class VideoError(StreamvidError):
    """A video or clip that cannot be read, stored or decoded."""
