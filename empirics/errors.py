"""The one exception family of this package."""


class EmpiricsError(ValueError):
    """An input or a run that cannot be used: says what was given, what is expected, what to do."""


class DamagedRun(EmpiricsError):
    """A run folder whose files are not what its own record says: named, and left as it is."""
