"""One video: its packets, their frame index, the MP4 that holds them, selections of packets, transcoding."""
