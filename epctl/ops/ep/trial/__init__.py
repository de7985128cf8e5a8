"""The op `ep`: what bench and selftest run of expert parallelism, and what they compare it with."""
