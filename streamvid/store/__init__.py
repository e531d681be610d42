"""Datasets on disk or in object storage: what they consist of, and how they are opened."""
