"""Why nothing could be measured."""


class CannotMeasure(Exception):
    """There is nothing to measure, or no way to: the text says in one line what was expected and what to do."""
