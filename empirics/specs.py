"""The spec of any run, and reading one back; apart from `empirics.spec`, since tasks on sequences need torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from empirics.errors import EmpiricsError
from empirics.sequence_spec import SequenceSpec
from empirics.spec import RunSpec, TransformerSpec, first_line

ShiftSpec = RunSpec | TransformerSpec
Spec = ShiftSpec | SequenceSpec
_SPEC: TypeAdapter[Spec] = TypeAdapter(Annotated[Spec, Field(discriminator="model")])


def read_spec(text: str) -> Spec:
    """A spec from its stored text. Raises EmpiricsError; unknown fields are refused."""
    try:
        return _SPEC.validate_json(text)
    except ValidationError as error:
        raise EmpiricsError(first_line(error)) from None
