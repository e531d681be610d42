"""Minimal scripts, each of which shows one fault of DALI, ready to be reported: see docs/dali-notes.md.

Each is to be sent to others by itself, so none imports from another, and they have lines in common.
"""
