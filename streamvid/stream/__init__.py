"""Dataset → training batches: plan, read, slice, decode, transform."""
