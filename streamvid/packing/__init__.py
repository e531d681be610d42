"""Videos → dataset."""
