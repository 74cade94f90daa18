"""The command as a person runs it: a process of its own, no terminal, exit codes, JSON parsed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import run_carrier, tiny_spec, without_training_extra

from bridge.paper import TARGETS
from bridge.paper.target import Preset
from empirics.spec import LearnedPositions, transformer_spec
from empirics.store import Store
from empirics.sweep import sweep
from theory.statements import STATEMENTS


def document(done: subprocess.CompletedProcess[str], code: int = 0) -> dict:
    """The one JSON document on stdout."""
    assert (done.returncode, done.stderr) == (code, ""), done.stderr
    return json.loads(done.stdout)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on stderr of a refused command."""
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == "" and done.stderr.count("\n") == 1 and done.stderr.startswith("carrier: "), done.stderr
    return done.stderr


def test_verify_lists_every_statement_with_both_wordings(tmp_path: Path) -> None:
    """Without torch; with it the README's own `carrier verify` runs."""
    told = document(run_carrier("verify", "--json", env=without_training_extra(tmp_path)))
    verdicts = {(entry["id"], entry["wording"]): entry["verdict"] for entry in told["statements"]}
    known = {
        ("lemma-1", "printed"): "proved",
        ("lemma-1", "amended"): "proved",
        ("lemma-2", "printed"): "proved",
        ("lemma-2", "amended"): "proved given a cited theorem",
        ("corollary-2", "printed"): "refuted",
        ("corollary-2", "amended"): "proved",
    }
    assert known.items() <= verdicts.items() and "not decided" not in verdicts.values()
    assert {name for name, _ in verdicts} == {statement.id for statement in STATEMENTS}
    for entry in told["statements"]:
        assert {"label", "method", "seconds", "counterexample"} <= entry.keys()
        assert all(example["breaks"] for example in entry["counterexample"])
        if entry["wording"] == "printed":
            assert bool(entry["counterexample"]) == (entry["verdict"] == "refuted")
        else:
            assert entry["counterexample"] or entry["verdict"] == "needs a run"


def test_verify_tells_the_story_of_one_statement() -> None:
    done = run_carrier("verify", "corollary-2")
    assert done.returncode == 0
    for part in ("Corollary 2, decay law: proof", "what breaks without an assumption", "refuted", "0.812725", "sympy"):
        assert part in done.stdout


def test_verify_says_what_runs_on_disk_show(tmp_path: Path) -> None:
    told = document(run_carrier("verify", "heads", "linear-control", "--runs", str(tmp_path), "--json"))
    runs = {(entry["id"], entry["wording"]): entry["run"] for entry in told["statements"]}
    assert runs["heads", "amended"] is None and runs["heads", "printed"]["target"] == "table-8"
    absent = run_carrier("verify", "linear-control", "--runs", str(tmp_path), env=without_training_extra(tmp_path))
    assert absent.returncode == 0 and "needs a run" in absent.stdout


def test_inspect_and_predict_a_checkpoint_without_torch(models: Path, tmp_path: Path) -> None:
    checkpoint, tokenizer = str(models / "stories260K.bin"), str(models / "tok512.bin")
    env = without_training_extra(tmp_path)
    told = document(run_carrier("inspect", checkpoint, "--tokenizer", tokenizer, "--head", "4", "--json", env=env))
    assert told["model"].keys() >= {"format", "family", "sha256", "assumptions"}
    assert told["model"]["sha256"].startswith("b0a507e7ad0f6266")
    (head,) = told["heads"]
    keys = "layer head query_fraction key_fraction offset share sink_share margin class flags"
    assert head.keys() >= set(keys.split())
    assert (head["layer"], head["head"], head["offset"]) == (0, 4, -1)
    options = ("--tokenizer", tokenizer, "--head", "4", "--lengths", "64,512", "--out", str(tmp_path / "out"), "--json")
    predicted = document(run_carrier("predict", checkpoint, *options, env=env))
    assert predicted.keys() >= {"layer", "head", "offset", "lengths", "laws", "standard_error", "observed", "flags"}
    assert predicted["laws"].keys() >= {"exact", "mean_profile", "constant"}
    assert (predicted["offset"], predicted["observed"]) == (-1, None)
    assert predicted["laws"]["exact"][1] == pytest.approx(head["share"], abs=5 * head["share_error"])
    assert any("rotary base 10000 is the default of the llama2.c format" in line for line in predicted["assumptions"])
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".csv", ".pdf", ".png", ".svg"}
    given = document(run_carrier("predict", checkpoint, *options[:4], "--offset", "-3", "--lengths", "4,9", "--json"))
    assert (given["offset"], given["lengths"]) == (-3, [4, 9])


def test_a_run_is_trained_shown_predicted_and_observed(tmp_path: Path) -> None:
    runs = str(tmp_path / "runs")
    options = ("--steps", "30", "--batch", "16", "--offset", "3", "--width", "8", "--base", "500", "--seed", "4")
    told = document(run_carrier("train", *options, "--runs", runs, "--json"))
    assert told["spec"]["encoding"] == {"kind": "rope", "base": 500.0} and told["spec"]["offset"] == 3
    assert all(seen["selected_offset"] <= 0 for seen in told["evaluation"])
    assert document(run_carrier("train", *options, "--runs", runs, "--json")) == told, "not trained again"
    assert document(run_carrier("runs", "show", told["path"], "--json")) == told
    listed = document(run_carrier("runs", "list", "--runs", runs, "--json"))
    assert listed == {"runs": [{"id": told["id"], "whole": True, "state": "whole"}]}

    for many in ("1", "-3", "10000000000000"):
        assert "cannot be observed: give 2 sequences" in one_line(
            run_carrier("predict", told["path"], "--observe", many)
        )
    assert "needs a length above 30" in one_line(
        run_carrier("predict", told["path"], "--offset", "30", "--lengths", "8,30")
    )
    lengths = ("--lengths", "8,20,40")
    predicted = document(run_carrier("predict", told["path"], *lengths, "--json"))
    assert (predicted["offset"], predicted["observed"], predicted["verdicts"]) == (-3, None, None)
    seen = document(run_carrier("predict", told["path"], *lengths, "--observe", "4000", "--json"))
    assert seen["laws"] == predicted["laws"]
    assert len(seen["observed"]) == len(seen["standard_error"]) == len(seen["observed_offset"]) == 3
    assert seen["verdicts"] == {"exact": "agrees", "mean_profile": "out of regime"}
    other = document(run_carrier("predict", told["path"], *lengths, "--offset", "1", "--observe", "4000", "--json"))
    assert (other["offset"], other["verdicts"]["exact"]) == (-1, "agrees")
    assert other["observed"] != seen["observed"]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path, Path]:
    """What `carrier reproduce all` says at the smoke preset, the folder of its runs and that of its files."""
    root = tmp_path_factory.mktemp("walk")
    runs, out = root / "runs", root / "out"
    options = ("all", "--preset", "smoke", "--runs", str(runs), "--out", str(out), "--json")
    return document(run_carrier("reproduce", *options)), runs, out


def test_reproduce_walks_through_every_target(walk: tuple[dict, Path, Path]) -> None:
    told, runs, out = walk
    assert [one["id"] for one in told["targets"]] == [target.id for target in TARGETS]
    assert {f"table-{n}" for n in range(1, 9)} | {f"figure-{n}" for n in range(1, 7)} < {t.id for t in TARGETS}
    cells = [cell for one in told["targets"] for cell in one["cells"]]
    assert all(cell.keys() >= {"row", "column", "printed", "ours", "spread", "verdict", "reason"} for cell in cells)
    assert {cell["verdict"] for cell in cells} == {"out of regime"}
    assert {cell["reason"] for cell in cells} == {"the smoke preset is not the paper's setting"}
    specs = {spec for target in TARGETS for spec in target.specs_at(Preset.SMOKE)}
    assert len(told["runs"]) == len(specs) == len(Store(runs).paths()) > 70
    assert {run.keys() >= {"id", "seed", "path"} for run in told["runs"]} == {True}
    for name in (
        "table-1.csv",
        "text-claims.csv",
        *(f"figure-{n}.{kind}" for n in range(1, 7) for kind in ("pdf", "png", "svg")),
    ):
        assert (out / name).stat().st_size > 0
    kept = json.loads((out / "results.json").read_text())
    lasting = {key: value for key, value in told.items() if key != "seconds"}
    assert kept == lasting | {"files": [Path(file).name for file in told["files"]]} and kept["preset"] == "smoke"
    assert "none compared" in (out / "results.md").read_text()


@pytest.mark.parametrize(
    "targets", [("table-6", "figure-4", "text-claims"), pytest.param(("all",), marks=pytest.mark.slow)], ids=" ".join
)
def test_reproduce_trains_no_run_twice(targets: tuple[str, ...], walk: tuple[dict, Path, Path], tmp_path: Path) -> None:
    """Called again: what it asks of the runs has the same answers, and what it draws has the same bytes."""
    before, runs, out = walk
    stamps = [(path / "run.json").stat().st_mtime_ns for path in Store(runs).paths()]
    options = ("--preset", "smoke", "--runs", str(runs), "--out", str(tmp_path), "--json")
    again = document(run_carrier("reproduce", *targets, *options))
    assert [(path / "run.json").stat().st_mtime_ns for path in Store(runs).paths()] == stamps
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    whole = targets == ("all",)
    shared = files.keys() if whole else files.keys() - {"results.json", "results.md"}
    assert len(shared) >= 5 and {name: files[name] for name in shared} == {
        name: (out / name).read_bytes() for name in shared
    }
    assert again["targets"] == [one for one in before["targets"] if whole or one["id"] in targets]


def test_the_demo_at_smoke_size(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = run_carrier(
        "demo", "--preset", "smoke", "--sequences", "200", "--runs", str(tmp_path / "runs"), "--out", str(out)
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "no bar where stderr is no terminal"
    for part in ("exact law", "mean-profile law", "learned positions", f"written: {out / 'dilution.png'}"):
        assert part in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("reproduce", "table-99"), "unknown target 'table-99': give table-1, table-2"),
        (("reproduce", "table-1", "--preset", "huge"), "unknown preset 'huge': give smoke or paper"),
        (("verify", "lemma-9"), "there is no statement 'lemma-9': give one of lemma-1"),
        (("train", "--offset", "8"), "offset K = 8 must be below the shortest training length 8"),
        (("train", "--width", "63"), "width 63 is odd"),
        (("train", "--base", "0"), "base: Input should be greater than or equal to 1"),
        (("train", "--base", "-10"), "base: Input should be greater than or equal to 1"),
        (("train", "--base", "nan"), "base: Input should be"),
        (("train", "--encoding", "ape", "--base", "100"), "--base 100 was given with ape positions, which have none"),
        (("train", "--buckets", "8"), "--buckets 8 was given with rope positions, which have none"),
        (("train", "--heads", "3"), "width 64 does not split into 3 heads"),
        (("train", "--attention", "hard"), "attention: Input should be 'softmax' or 'linear'"),
        (("train", "--second-offset", "9"), "offset K = 9 must be below the shortest training length 8"),
        (("train", "--device", "cuda"), "device 'cuda' cannot be used here"),
        (("train", "--device", "abacus"), "device 'abacus' cannot be used here"),
        (
            ("reproduce", "table-7", "--preset", "smoke", "--scheduler", "host"),
            "'host' is no address of a Dask scheduler",
        ),
        (("train", "--encoding", "rotary"), "--encoding rotary is unknown: give one of rope, periodic, ape"),
        (("train", "--device", "meta"), "device 'meta' cannot be used here"),
        (("train", "--evaluation-lengths", "300000"), "an evaluation of 1228800000 tokens is too large"),
        (("train", "--train-lengths", "8,12,16"), "train_lengths"),
        (("train", "--train-lengths", "1"), "--train-lengths needs whole numbers from 2"),
        (("train", "--learning-rate", "1e300"), "learning_rate"),
        (("train", "--seed", "-1"), "seed"),
        (("train", "--vocabulary", "10000000000000"), "vocabulary"),
        (("predict", "a" * 5000), "File name too long"),
        (("train", "--steps", "many"), "Invalid value for '--steps'"),
        (("predict", "absent"), "absent: no such file"),
        (("predict", "absent", "--observe", "100"), "absent: no such file"),
        (("predict", "absent", "--lengths", "8,x"), "--lengths needs whole numbers from 2 to 1000000 with commas"),
        (("predict", "absent", "--lengths", "10000000000"), "--lengths needs whole numbers from 2 to 1000000"),
        (("inspect", "absent"), "absent: no such file"),
        (("runs", "show", "absent"), "no run at absent"),
        (("runs", "list", "--runs", "absent"), "no folder of runs at absent"),
        (("bogus",), "No such command 'bogus'"),
        (("train", "--bogus"), "No such option"),
        ((), "Missing command"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    assert message in one_line(run_carrier(*arguments, cwd=tmp_path))
    assert not any((tmp_path / name).exists() and any((tmp_path / name).iterdir()) for name in ("runs", "out"))


@pytest.mark.parametrize("command", [("reproduce", "table-7", "--preset", "smoke"), ("demo", "--preset", "smoke")])
@pytest.mark.parametrize("option", ["--out", "--runs"])
def test_a_folder_that_cannot_be_written_is_refused_before_training(
    command: tuple[str, ...], option: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("kept")
    folders = {"--out": str(tmp_path / "out"), "--runs": str(tmp_path / "runs")}
    folders[option] = str(tmp_path / "file" / "folder")
    done = run_carrier(*command, *(part for pair in folders.items() for part in pair))
    assert "cannot write to" in one_line(done)
    assert (tmp_path / "file").read_text() == "kept"
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_damaged_runs_are_named_by_every_command_that_meets_them(tiny_store: Store, tmp_path: Path) -> None:
    store = Store(Path(shutil.copytree(tiny_store.root, tmp_path / "runs")))
    run, other = store.path(tiny_spec()), store.path(tiny_spec(encoding=LearnedPositions()))
    weights = run / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    for command in (("predict", str(run)), ("runs", "show", str(run))):
        assert "weights.safetensors was altered or cut" in one_line(run_carrier(*command))
    done = run_carrier("runs", "verify", "--runs", str(store.root), "--json")
    states = {entry["id"]: entry["whole"] for entry in document(done, code=1)["runs"]}
    assert states == {run.name: False, other.name: True}
    moved = other.rename(run.parent / "elsewhere")
    assert "holds the run of another spec" in one_line(run_carrier("predict", str(moved)))


def test_a_run_that_diverged_to_huge_logits_is_one_line(tmp_path: Path) -> None:
    """A finite loss does not make a head that the laws can take."""
    options = ("--steps", "5", "--batch", "4", "--learning-rate", "100", "--runs", str(tmp_path / "runs"), "--json")
    told = document(run_carrier("train", *options))
    assert "such a head has diverged" in one_line(run_carrier("predict", told["path"]))


def test_every_folder_of_a_store_is_listed(tiny_store: Store, tmp_path: Path) -> None:
    store = Store(Path(shutil.copytree(tiny_store.root, tmp_path / "runs")))
    (store.root / tiny_spec(seed=5).id).mkdir()
    whole = store.path(tiny_spec())
    (whole / "run.json").unlink()
    (whole / "run.json").mkdir()
    told = document(run_carrier("runs", "list", "--runs", str(store.root), "--json"))
    states = {entry["id"]: entry["state"] for entry in told["runs"]}
    assert len(states) == 3 and "Is a directory" in states[whole.name]
    assert "no finished run" in states[tiny_spec(seed=5).id]


def test_learned_positions_are_no_head_to_predict(tiny_store: Store) -> None:
    path = str(tiny_store.path(tiny_spec(encoding=LearnedPositions())))
    assert "adds positions to its embedding" in one_line(run_carrier("predict", path))


def test_a_run_of_several_heads_is_predicted_head_by_head(tmp_path: Path) -> None:
    """ALiBi, two heads: each is observed beside its own prediction; a third is refused, and so is a deeper layer."""
    options = (
        "--encoding",
        "alibi",
        "--slope",
        "0.3",
        "--heads",
        "2",
        "--width",
        "8",
        "--steps",
        "40",
        "--offset",
        "1",
    )
    run = document(run_carrier("train", *options, "--runs", str(tmp_path / "runs"), "--json"))["path"]
    lengths = ("--lengths", "8,20,40", "--observe", "4000", "--json")
    first, second = (document(run_carrier("predict", run, "--head", head, *lengths)) for head in "01")
    assert (first["head"], second["head"]) == (0, 1) and first["laws"] != second["laws"]
    assert first["verdicts"]["exact"] == second["verdicts"]["exact"] == "agrees"
    assert "has heads 0 to 1, got 2" in one_line(run_carrier("predict", run, "--head", "2"))
    assert "has layer 0 only, got layer 1" in one_line(run_carrier("predict", run, "--layer", "1"))
    assert "--tokenizer belongs to a checkpoint" in one_line(run_carrier("predict", run, "--tokenizer", "absent"))


def test_a_transformer_is_shown_and_not_taken_for_a_head(tmp_path: Path) -> None:
    spec = transformer_spec(width=16, steps=2, batch=4, evaluation_sequences=8, profile_sequences=4)
    store = Store.open(tmp_path / "runs")
    sweep([spec], store)
    shown = document(run_carrier("runs", "show", str(store.path(spec)), "--json"))
    assert shown["spec"]["model"] == "transformer" and len(shown["evaluation"][0]["heads"]) == 8
    assert "head with most attention at -K" in run_carrier("runs", "show", str(store.path(spec))).stdout
    assert "is a transformer" in one_line(run_carrier("predict", str(store.path(spec))))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--layer", "3"), "holds no tokenizer: give --tokenizer FILE, or --text itself"),
        (("--layer", "5"), "layer 5 does not exist"),
        (("--head", "8", "--uniform"), "head 8 does not exist"),
        (("--sha256", "00ff", "--uniform"), "was altered or is another file"),
        ((), "no tokenizer: give --tokenizer"),
        (("--counts", "story"), "--counts needs --tokenizer"),
        (("--counts", "story", "--uniform"), "--uniform counts no text"),
        (("--sort", "width", "--uniform"), "--sort needs head, query-fraction"),
        (("--rope-scaling", "spiral:4"), "--rope-scaling needs a kind and a factor above 0"),
        (("--base", "-1"), "--base must be a finite number above 0"),
    ],
)
def test_a_checkpoint_that_is_asked_for_too_much(options: tuple[str, ...], message: str, models: Path) -> None:
    assert message in one_line(run_carrier("inspect", str(models / "stories260K.bin"), *options))


@pytest.mark.parametrize("command", ["inspect", "predict"])
@pytest.mark.parametrize("damage", ["truncated", "pointer", "tables"])
def test_a_damaged_checkpoint(command: str, damage: str, models: Path, tmp_path: Path) -> None:
    raw = bytearray((models / "stories260K.bin").read_bytes())
    if damage == "tables":
        raw[-4:] = b"\x00\x00\x80\x3f"
    elif damage == "pointer":
        raw = bytearray(b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1056540\n")
    else:
        del raw[-1]
    (tmp_path / "model.bin").write_bytes(raw)
    message = {"truncated": "truncated", "pointer": "git-LFS pointer", "tables": "altered"}[damage]
    assert message in one_line(run_carrier(command, str(tmp_path / "model.bin"), "--uniform"))
