"""Whole lives of training clusters on the product's own code, under a simulated clock, disk, storage and scheduler."""
