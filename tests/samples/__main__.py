"""`python -m tests.samples`: writes all composed samples anew."""

from __future__ import annotations

from tests.samples import COMPOSED
from tests.samples.parts import write

for name, sample in COMPOSED.items():
    write(name, sample)
    print(name)
