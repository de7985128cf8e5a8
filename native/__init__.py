"""C++ and CUDA sources, and the Python that finds a toolchain for them, compiles them at first use, and caches the result."""
