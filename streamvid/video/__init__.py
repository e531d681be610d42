"""One video: its packets, their index, the MP4 that holds them, and slices of it."""
