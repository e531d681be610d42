"""Commands that change an existing dataset: each makes a revision."""
