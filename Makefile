# Every target sets up what it needs in .venv. PYTHON chooses the interpreter (3.11 or later).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tiny models: two threads are slower than one.
export OMP_NUM_THREADS := 1
export HF_HUB_OFFLINE ?= 1

.PHONY: quickstart test check lint types slow gpu clean

quickstart: $(VENV)/installed  ## Train the embedded policy with PlanPO and GRPO, print a table
	$(BIN)/python recipes/quickstart.py

test: check  ## Lint, types, import layers, tests: all that CI runs
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not gpu"

slow: $(VENV)/installed-dev  ## Tests over 10 s
	$(BIN)/python -m pytest -m "slow and not gpu"

gpu: $(VENV)/installed-dev  ## Tests that need CUDA
	$(BIN)/python -m pytest -m gpu

check: lint types

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/lint-imports

types: $(VENV)/installed-dev
	$(BIN)/mypy

# torch comes first and alone, so that the constraint decides which build is installed.
$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) outputs .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
