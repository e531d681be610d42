"""What a dataset holds, what a sampling of it costs, and whether it is intact."""
