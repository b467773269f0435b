"""The eyes: rebuild each request's time from the logs alone."""
