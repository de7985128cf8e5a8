"""Where the bytes of Mixture-of-Experts inference go in a leaf-spine fabric: topology, placement, traffic, ECMP, accounting.

A byte-counting model: no latency, no loss, no adaptive routing. Pure arithmetic, as `epctl.model`, whose gates it draws from.
"""
