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
Text = Annotated[
    str | None,
    typer.Option(
        "--text",
        help="Run the model on a text: file, folder, topics, source, stories, or itself (sampled from the model).",
    ),
]
Window = Annotated[int | None, typer.Option("--window", help="Tokens of a window of the text; default 257.")]
Windows = Annotated[int | None, typer.Option("--windows", help="Most windows of the text; default 22.")]
FirstToken = Annotated[
    str | None,
    typer.Option("--first-token", help="Before each window: auto (as the tokenizer declares), none, or a number."),
]
Cache = Annotated[Path | None, typer.Option("--cache", help="Folder of activations; default: the user's cache.")]
Counts = Annotated[
    Path | None,
    typer.Option(
        "--counts", help="Layer 0 from weights: text to count tokens in; default: Python's topics (llama2.c: stories)."
    ),
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
Layer = Annotated[
    int | None,
    typer.Option(
        "--layer", help="Layer; 0 follows from weights alone, others run the model. Default 0; with --text all."
    ),
]
Models = Annotated[
    Path | None,
    typer.Option("--models", envvar="CARRIER_MODELS", help="Folder of checkpoints that studies of real heads run."),
]
Device = Annotated[str, typer.Option("--device", help="Where runs train: cpu, or cuda where there is one.")]
Scheduler = Annotated[
    str | None, typer.Option("--scheduler", help="Dask scheduler whose workers train: tcp://HOST:8786.")
]
