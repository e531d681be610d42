"""Fuzzing of everything that reads bytes of others: `python -m tools.fuzz --seconds 60 --target mp4 --seed 1`."""
