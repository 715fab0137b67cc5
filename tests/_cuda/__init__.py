"""The CUDA backend on machines without a GPU: a stand-in for the arrays of CuPy."""
