# Two commands need nothing but Python 3.11 or newer and make: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS ?= runs
READY := $(VENV)/.ready

.PHONY: demo test test-slow mutants findings docs lint bench clean

demo: $(READY)
	$(BIN)/carrier demo --runs $(RUNS) --out demo $(DEMO)

test: $(READY)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal $(TESTS)

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow $(TESTS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

mutants: $(READY)
	$(BIN)/python -m tests.mutants

findings: $(READY)
	$(BIN)/python -m bridge.findings > docs/findings.md

docs: $(READY)
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs

bench: $(READY)
	$(BIN)/python -m benchmarks $(BENCH)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "carrier needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,lint]'
	touch $(READY)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
