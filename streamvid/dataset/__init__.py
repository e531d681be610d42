"""A packed dataset: its manifest, its rows as columns, its clips' frame indexes."""
