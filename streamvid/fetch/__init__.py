"""Frames that are wanted → byte ranges of shards → packets for a decoder."""
