"""The one exception family of this package."""


class TheoryError(ValueError):
    """An input that the theory cannot take: says what was given, what is expected, what to do."""
