"""Commands of the console script: each module has `add_arguments` and `run`."""
