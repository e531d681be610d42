"""`sv.dali`: streamvid for who writes DALI pipelines, and for who serves models with them. docs/dali.md."""

from streamvid.transform.triton import export as export
