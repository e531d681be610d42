"""Which frames of a clip a sample shows: frame samplers and their padding."""
