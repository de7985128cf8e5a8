"""Checks of NCCL's network plugins, whatever the network. What EFA asks of its plugin is in efa."""

from __future__ import annotations

from collections.abc import Iterator

from epctl.core.check import Seen, bad, check, good, unread
from epctl.core.context import Context
from epctl.core.fact import Absent
from epctl.core.views import needs, plugins
from epctl.core.views.needs import GPU
from epctl.core.views.settings import setting, told


@check(
    "NCCL-PLUGIN-UNLOADABLE",
    area="nccl",
    severity="fail",
    title="NCCL's network plugin cannot be loaded",
    why="A plugin from the host that asks for a newer C library or for files that are not there does not load: with NCCL_NET "
    "set the job stops, without it NCCL falls back to another network without a word.",
    fix="Use an image with a new enough C library, mount the plugin's whole folder, or unset NCCL_NET and NCCL_NET_PLUGIN to "
    "use NCCL's own transport.",
    reference="https://github.com/AI-Hypercomputer/gpu-recipes/issues/5 https://github.com/llm-d/llm-d/issues/2043",
    needs=(GPU,),
)
def nccl_plugin_unloadable(context: Context) -> Iterator[Seen]:
    present = plugins.found(context.node)
    network = setting(context, "NCCL_NET")
    asked = plugins.requested(context)
    if asked == ("none",):
        return
    demanded = network is not None and network.lower() not in plugins.BUILT_IN
    relevant = (
        [plugin for plugin in present if any(plugins.answers(plugin, entry) for entry in asked)] if asked else present
    )
    if not relevant and (asked or demanded) and not needs.has_efa(context.node):  # EFA-PLUGIN-NOT-FOUND says it there
        yield _unfound(context, asked)
    for plugin in relevant:
        reasons = plugins.obstacles(context.node, plugin)
        for reason in reasons:
            yield bad(f"{plugin.path} {reason}", severity=None if demanded or asked else "warn")
        if not reasons:
            yield good(f"{plugin.path} can be loaded")


def _unfound(context: Context, asked: tuple[str, ...]) -> Seen:
    name = "NCCL_NET_PLUGIN" if asked else "NCCL_NET"
    if any("/" in entry for entry in asked):
        return unread(told(context, name), Absent("not_read", "a file outside the loader path was not looked at"))
    return bad(f"{told(context, name)}, and no such plugin is on the loader path")
