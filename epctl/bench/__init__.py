"""Runs ops: timed (bench) and against their references (selftest)."""
