from tests.samples.parts import Part, Sample
def build() -> tuple[Part, ...]: return ()
SAMPLE = Sample("x", build)
