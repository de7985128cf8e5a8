"""DeepEP of the second generation (2.0, 2.1, 2.5): what it looks at on a node by itself."""

from __future__ import annotations

from epctl.core.check import Need
from epctl.core.context import Context
from epctl.core.views import needs, versions
from epctl.core.views.settings import setting, told

NAMES = ("deepinfer-ep", "deep-ep")
DEFAULT_ADAPTER = "mlx5_0"
"""The adapter whose rate and card type DeepEP asks ibstat for (deep_ep/utils/envs.py)."""


def second(context: Context) -> dict[str, str]:
    """Installed distributions of that generation, with their releases. Raises Unreadable."""
    listed = {name: context.distributions.get(name, "") for name in NAMES}
    return {name: version for name, version in listed.items() if version and versions.below(version, "2.0") is False}


def rate_adapter(context: Context) -> tuple[str, str]:
    """The adapter that DeepEP asks for, and who says so. EP_NIC_NAME counts up to 2.1; 2.5.0 has the name in its code."""
    for name, version in second(context).items():
        if versions.below(version, "2.5") is False:
            return DEFAULT_ADAPTER, f"fixed in {name} {version}"
    if setting(context, "EP_NIC_NAME"):
        return setting(context, "EP_NIC_NAME") or "", told(context, "EP_NIC_NAME")
    return DEFAULT_ADAPTER, "EP_NIC_NAME is not set"


def _second(context: Context) -> str:
    if not needs.has_gpu(context.node):
        return "no NVIDIA GPU in this machine"
    return "" if second(context) else "DeepEP 2 or newer is not installed"


SECOND = Need("deepep2", _second)
