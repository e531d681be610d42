"""Benchmarks. All have one form, which report.py defines."""
