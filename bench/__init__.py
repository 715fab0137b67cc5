"""Jobs and measurements on sparsekit, run from the repository root as ``python -m bench``; never installed."""
