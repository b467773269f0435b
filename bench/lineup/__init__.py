"""The lineup: faults that are injected on purpose and recorded, to measure how often a diagnosis is right.

README.md has the protocol.
"""
