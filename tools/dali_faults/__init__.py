"""Minimal scripts, each of which shows one fault of DALI, ready to be reported: see docs/dali-notes.md."""
