"""Random access: clips and frames of a dataset in any order that a Sampler says, for PyTorch's own DataLoader."""
