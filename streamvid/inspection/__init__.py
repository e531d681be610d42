"""What is in a dataset, and whether it is whole."""
