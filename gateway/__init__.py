"""The gateway: HTTP in, Redis Streams out, the answer back to the waiting client."""
