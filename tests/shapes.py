"""The checker of types and shapes that the test suite puts on every annotated function."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

# As type checkers do, a whole number passes for a float.
checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
