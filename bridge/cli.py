"""The command `carrier`.

Tables go to stdout, progress to stderr where that is a terminal, one JSON document to stdout
with --json. Exit 0: every verdict is the one on record; 1: some verdict differs; 2: bad input,
said in one line; 3: a defect of ours. What needs torch is imported inside the commands that train or read runs, so
that `carrier verify` and checkpoints work without it; what draws, only where there is something to draw.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import typer

from bridge.commands import design, inspect, predict, repair, report, reproduce, runs, train, verify
from bridge.errors import BridgeError
from empirics.errors import EmpiricsError
from theory.errors import TheoryError

app = typer.Typer(
    name="carrier",
    help="Why rotary attention generalizes in length: carriers, predictions, and what heads do.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    verify.verify,
    reproduce.reproduce,
    inspect.inspect,
    predict.predict,
    design.design,
    repair.repair,
    report.report,
    train.train,
    train.demo,
):
    app.command()(command)
app.add_typer(runs.app, name="runs")


def main() -> NoReturn:
    """Entry point: every foreseen error is one line on stderr and exit code 2."""
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except (TheoryError, EmpiricsError, BridgeError) as error:
        _fail(str(error))
    except typer.TyperException as error:
        _fail(error.format_message() or "no command given: see carrier --help")
    except (KeyboardInterrupt, typer.Abort):
        print("carrier: interrupted; finished runs are kept", file=sys.stderr)
        sys.exit(130)
    except MemoryError:
        _fail("not enough memory for what was asked: give shorter lengths or fewer sequences")
    except BrokenPipeError:
        # The reader has gone, as in `carrier verify | head`; nothing may be flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror}")
    except Exception as error:
        if "allocate memory" in str(error):
            _fail("not enough memory for what was asked: give shorter lengths or fewer sequences")
        if "CARRIER_TRACEBACK" in os.environ:
            raise
        # No input should lead here; whatever does is a defect, and is told apart from bad input.
        message = " ".join(str(error).split())[:300]
        print(f"carrier: a defect, {type(error).__name__}: {message}; CARRIER_TRACEBACK=1 shows where", file=sys.stderr)
        sys.exit(3)


def _fail(message: str) -> NoReturn:
    print(f"carrier: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
