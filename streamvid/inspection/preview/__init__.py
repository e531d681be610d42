"""A dataset or a batch as one HTML file: strips of frames, histograms, and a table to filter."""
