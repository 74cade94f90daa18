"""A Sphinx extension for docstrings that are plain text with equations.

    ```{api} theory
    Head Carrier
    ```

documents `theory.Head` and `theory.Carrier`, each as what it is. In a docstring nothing is markup: a paragraph that is
indented is shown as it stands, `x` is code, and any other sign is itself.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from textwrap import dedent

from docutils.nodes import Node
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

_CODE = re.compile(r"`([^`]+)`")
_MARKUP = re.compile(r"([*_|\\`])")


class Api(SphinxDirective):
    """The objects of a module by name, in the order given."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[Node]:
        module = import_module(self.arguments[0])
        names = " ".join(self.content).split()
        lines = [line for name in names for line in _documented(f"{module.__name__}.{name}", getattr(module, name))]
        return self.parse_text_to_nodes("\n".join(["```{eval-rst}", *lines, "```"]))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("api", Api)
    app.connect("autodoc-process-docstring", _as_plain_text)
    return {"parallel_read_safe": True}


def _documented(name: str, thing: object) -> list[str]:
    if inspect.isclass(thing):
        kind = "exception" if issubclass(thing, BaseException) else "class"
        return [f".. auto{kind}:: {name}", "   :members:", ""]
    return [f".. auto{'function' if inspect.isroutine(thing) else 'data'}:: {name}", ""]


def _as_plain_text(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    paragraphs = re.split(r"\n\s*\n", dedent("\n".join(lines)).strip("\n"))
    lines[:] = [*"\n\n".join(map(_paragraph, paragraphs)).split("\n"), ""]


def _paragraph(text: str) -> str:
    rows = text.split("\n")
    if all(row.startswith("  ") for row in rows):
        return "::\n\n" + text
    parts = _CODE.split(text)
    return "".join(f"``{part}``" if n % 2 else _MARKUP.sub(r"\\\1", part) for n, part in enumerate(parts))
