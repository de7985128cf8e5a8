"""Pure views of a snapshot that several checks, the ladder, topo and plan share."""
