"""`streamvid info` and `streamvid verify`: statistics of a dataset, cost of a frame sampler, integrity checks."""
