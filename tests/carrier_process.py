"""What a process does that was forked to be `carrier`: the modules that commands import have been loaded once before.

Each command is a process of its own, with a working folder, an environment, streams and an exit code of its own;
what it does not do again is to import torch, scipy, sympy and matplotlib.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

LOADED = ("bridge.cli", "bridge.account", "bridge.content", "bridge.reproduce", "bridge.results", "bridge.run_views")


def run(arguments: Sequence[str], folder: Path, environment: Mapping[str, str], stdout: Path, stderr: Path) -> None:
    """`carrier ARGUMENTS` in a folder, its two streams to files. Exits as the command does."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    streams = (Path(os.devnull), os.O_RDONLY), (stdout, os.O_WRONLY), (stderr, os.O_WRONLY)
    for descriptor, (path, mode) in enumerate(streams):
        os.dup2(os.open(path, mode), descriptor)
    sys.argv = ["carrier", *arguments]
    from bridge.cli import main

    main()
