"""The commands of `streamvid`, a module each: its options, and what it prints."""
