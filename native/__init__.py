"""C++ and CUDA sources, and the Python that compiles them at first use. The first kernels arrive with the native core."""
