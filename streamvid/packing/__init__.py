"""Videos → a dataset of WebDataset shards with a frame index for every clip."""
