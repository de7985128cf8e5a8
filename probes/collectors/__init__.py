"""Scripts that run in a child process and print one JSON document each; see probes/source.py."""
