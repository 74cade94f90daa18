"""The one exception family of this package."""


class BridgeError(ValueError):
    """A file or an option that cannot be used: says what was given, what is expected, what to do."""
