"""Decisions as pure functions: values and `now_ns` in, a decision out. No clock, no I/O."""
