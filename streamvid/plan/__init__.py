"""Which sample of which clip, in which order, on which rank: pure functions of seed, epoch and world."""
