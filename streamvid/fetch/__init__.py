"""Wanted frames → byte ranges of shards → packets for a decoder."""
