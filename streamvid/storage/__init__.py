"""Bytes by path or URL: fsspec's filesystems, ranged reads, the cache of remote shards."""
