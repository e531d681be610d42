"""Changes of a dataset that exists: each makes a revision."""
