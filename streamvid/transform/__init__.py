"""Frames → the model's tensor: resize, crop, augment, normalise, layout; by a DALI graph or on the CPU."""
