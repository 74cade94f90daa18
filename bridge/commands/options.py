"""Options that more than one command has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout and nothing else.")]
RunsFolder = Annotated[Path, typer.Option("--runs", help="Folder of the runs.")]
OutFolder = Annotated[Path, typer.Option("--out", help="Folder for tables and pictures.")]
OptionalOut = Annotated[Path | None, typer.Option("--out", help="Folder for table and picture.")]
PresetName = Annotated[str, typer.Option("--preset", help="paper, or smoke (seconds; compares nothing).")]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Processes, a thread each, or shares on a cluster; else 2, or all."),
]
Lengths = Annotated[str | None, typer.Option("--lengths", help="Context lengths in tokens, such as 16,64,256.")]
TokenizerSource = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer", help="Folder or tokenizer.json, GGUF, or llama2.c tokenizer; default: the model's own."
    ),
]
TextFile = Annotated[
    Path | None,
    typer.Option("--text", help="Text whose tokens are counted; default: Python's topics (llama2.c: stories)."),
]
Uniform = Annotated[bool, typer.Option("--uniform", help="Every token as often as any other: poor.")]
Base = Annotated[float | None, typer.Option("--base", help="Another rotary base than the model's, or a missing one.")]
RopeScaling = Annotated[
    str | None,
    typer.Option(
        "--rope-scaling", help="none, linear:4, ntk:4, dynamic:4, yarn:4 or llama3:8 in place of the model's."
    ),
]
Sha256 = Annotated[str | None, typer.Option("--sha256", help="Refuse a checkpoint with another checksum.")]
Layer = Annotated[int, typer.Option("--layer", help="Layer; only 0 follows from weights alone.")]
Device = Annotated[str, typer.Option("--device", help="Where runs train: cpu, or cuda where there is one.")]
Scheduler = Annotated[
    str | None, typer.Option("--scheduler", help="Dask scheduler whose workers train: tcp://HOST:8786.")
]
