"""What a model is, where models come from, and the demo models. With worker/device.py the only place for torch."""
