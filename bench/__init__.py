"""The canonical workloads, and what they measured (`results/`: JSON with commit, hardware and settings)."""
