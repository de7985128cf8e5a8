"""epctl: bring up GPU nodes for Mixture-of-Experts models with expert parallelism."""

__version__ = "0.1.0"
