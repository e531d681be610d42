"""DALI from end to end: WebDataset reader, video decoder, transform and iterator in one DALI pipeline."""
