"""Packets → frames: NVDEC, DALI's decoder, or FFmpeg on the CPU."""
