"""One module a command: parse, build a request, one call, one renderer, exit code."""
