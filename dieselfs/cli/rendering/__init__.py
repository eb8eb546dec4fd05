"""The output of commands: results, progress, errors and exit codes."""
