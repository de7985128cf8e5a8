"""The forms by which identifiers are known in any text: addresses, GUIDs, secrets, URLs, names of cloud machines."""

from __future__ import annotations

import re

_HEX = "[0-9a-fA-F]"
_FORMS = {
    "secret": r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|hf_[A-Za-z0-9]{16,}|glpat-[\w-]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{12,}|sk-[A-Za-z0-9_-]{20,}|xox[a-z]-[\w-]{10,}|nvapi-[\w-]{16,}|eyJ[\w-]{8,}\.[\w.-]{8,})"
    r"|(?<=Bearer )[\w.~+/=-]{8,}|(?<=bearer )[\w.~+/=-]{8,}",
    "authority": r"""(?<=://)[^\s/"'<>,;?#]+""",
    "mail": r"(?<![\w.+-])[A-Za-z0-9_][\w.+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,8}"
    r"(?!(?:service|socket|target|mount|slice|scope|timer|path|device)\b)[A-Za-z]{2,24}(?![\w-])",
    "host": r"(?<![\w.-])ip-\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3}(?:\.[A-Za-z0-9-]{1,63}){0,8}(?![\w-])"
    r"|(?<![\w./-])[A-Za-z0-9][A-Za-z0-9-]{0,62}(?:\.[A-Za-z0-9-]{1,63}){0,8}\.(?:internal|corp|lan|intra|intranet|local)(?![\w-])",
    "cloud": rf"(?<![\w-])(?:i|vol|eni|vpc|subnet|sg|ami|r)-(?:{_HEX}{{17}}|{_HEX}{{8}})(?![\w-])",
    "uuid": rf"(?<!{_HEX}){_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}(?!{_HEX})",
    "long_mac": rf"(?<![0-9a-fA-F:])(?:{_HEX}{{2}}:){{19}}{_HEX}{{2}}(?![0-9a-fA-F:])",
    "mac": rf"(?<![0-9a-fA-F:])(?:{_HEX}{{2}}:){{5}}{_HEX}{{2}}(?![0-9a-fA-F:])",
    "dashed": rf"(?<![\w-])(?:(?:{_HEX}{{2}}-){{7}}|(?:{_HEX}{{2}}-){{5}}){_HEX}{{2}}(?![\w-])",
    "gid": rf"(?<![0-9a-fA-F:])(?:{_HEX}{{4}}:){{7}}{_HEX}{{4}}(?![0-9a-fA-F:])",
    "guid": rf"(?<![0-9a-fA-F:])(?:{_HEX}{{4}}:){{3}}{_HEX}{{4}}(?![0-9a-fA-F:])",
    # Whether it is an address is for `ipaddress` to say.
    "ipv6": rf"(?<![0-9a-zA-Z:.]){_HEX}{{0,4}}:(?:{_HEX}{{0,4}}:){{1,7}}(?:(?:\d{{1,3}}\.){{3}}\d{{1,3}}|{_HEX}{{0,4}})"
    r"(?![0-9a-zA-Z:]|\.[0-9a-zA-Z])",
    "hex32": rf"(?<![0-9a-fA-Fx]){_HEX}{{32}}(?!{_HEX})",
    "hex16": rf"(?<=0[xX]){_HEX}{{16}}(?!{_HEX})|(?<=[SHR]-){_HEX}{{16}}(?!{_HEX})|(?<=\(){_HEX}{{16}}(?=\))"
    rf"|(?<![\w.-])(?=[0-9]*[a-fA-F]){_HEX}{{16}}(?!\w)",
    "ipv4": r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)",
}
ANY = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _FORMS.items()), re.ASCII)
SERIAL = re.compile(
    r"""(?i)(serial(?:[ _]?number)?["']?\s*(?:\(SN\))?\s*[:=]\s*["']?(?:0x)?)([0-9A-Z][0-9A-Z-]{5,40})"""
)
VERSION_BEFORE = re.compile(
    r"(?i)(?:versions?|release|firmware|nvidia-(?:cu|nv|nccl)[\w-]*|\blibcu[\w-]*|-cu\d+|[=<>~]=)[\s\"':=(,]{0,6}\Z"
)
"""What stands before four numbers that are a version and no address."""
PUBLIC_DOMAINS = ("github.com", "nvidia.com", "pytorch.org", "pypi.org", "python.org", "kernel.org", "readthedocs.io")
