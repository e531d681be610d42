"""Programs around streamvid that are not part of the library: clips for tests, the demo, benchmarks."""
