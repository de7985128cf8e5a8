"""What files say about libraries and toolkits. Standard library alone, Python 3.8 or later: epctl imports these modules, and the
collectors load them in whatever interpreter they examine, through its path (probes/collectors/_shared.py)."""
