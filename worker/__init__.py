"""The worker: pulls requests continuously, batches them, runs the models, publishes the answers."""
