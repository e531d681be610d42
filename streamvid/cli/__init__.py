"""The command `streamvid`, a module for each subcommand."""
