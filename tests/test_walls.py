"""The three walls: theory knows no training, empirics no theorem, and only the bridge sees both."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, run_carrier, without_training_extra

FORBIDDEN = {
    "theory": {"torch", "safetensors", "empirics", "bridge"},
    "empirics": {"theory", "bridge"},
}
# What `carrier verify`, `inspect` and `predict CHECKPOINT` load must do without torch.
TORCH_FREE = (
    "calibrated",
    "calibrated_views",
    "calibration",
    "cli",
    "commands.design",
    "commands.inspect",
    "commands.repair",
    "commands.report",
    "commands.on_text",
    "commands.predict",
    "compare",
    "content",
    "designs",
    "documents",
    "figures.layer",
    "figures.model",
    "figures.pinned",
    "figures.predictions",
    "figures.save",
    "head_views",
    "inspect",
    "limits",
    "observation",
    "orders",
    "over_heads",
    "pinned",
    "pinned_views",
    "prediction",
    "sources.activations",
    "sources.attention",
    "sources.cache",
    "sources.change",
    "sources.configuration",
    "sources.document",
    "sources.families",
    "sources.family",
    "sources.formats",
    "sources.gguf",
    "sources.gguf_file",
    "sources.gguf_tokenizer",
    "sources.hugging_face",
    "sources.hugging_face_tokenizer",
    "sources.llama2c",
    "sources.llama2c_tokenizer",
    "sources.loading",
    "sources.model",
    "sources.network",
    "sources.safetensors",
    "sources.sampling",
    "sources.tensors",
    "sources.texts",
    "sources.tokens",
    "statement_views",
    "surface",
    "text_content",
    "trust",
)


def imports(path: Path) -> set[str]:
    """Top-level packages that a module imports anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_a_package_keeps_its_wall(package: str) -> None:
    modules = sorted((ROOT / package).rglob("*.py"))
    assert len(modules) > 5
    crossed = {str(path): imports(path) & FORBIDDEN[package] for path in modules}
    assert {path: names for path, names in crossed.items() if names} == {}


def test_the_bridge_sees_both_sides() -> None:
    seen = set().union(*(imports(path) for path in (ROOT / "bridge").rglob("*.py")))
    assert {"theory", "empirics"} <= seen


def test_parts_that_need_no_torch_load_without_it(tmp_path: Path) -> None:
    code = f"""
import importlib, sys
for name in {TORCH_FREE!r}:
    importlib.import_module("bridge." + name)
    assert "torch" not in sys.modules, name
"""
    environment = without_training_extra(tmp_path)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_command_that_trains_says_what_is_missing(tmp_path: Path) -> None:
    done = run_carrier("train", "--runs", str(tmp_path / "runs"), env=without_training_extra(tmp_path))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "pip install 'attention-carrier[train]'" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_no_module_outgrows_a_page() -> None:
    sizes = {
        str(path): len(path.read_text().splitlines())
        for package in ("theory", "empirics", "bridge")
        for path in (ROOT / package).rglob("*.py")
    }
    assert {path: lines for path, lines in sizes.items() if lines > 300} == {}
