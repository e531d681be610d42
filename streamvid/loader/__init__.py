"""The loaders that users iterate: batches of PyTorch tensors out of a dataset."""
