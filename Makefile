# `make help` lists the commands. Each sets up what it needs first; a second set-up costs nothing.
PYTHON ?= python3
VENV ?= .venv
# Half of the tests wait for hosts, clusters and time limits: two workers for each core, three for what waits most.
CORES := $(shell $(PYTHON) -c 'import os; print(min(6, os.cpu_count() or 1))')
WORKERS ?= $(shell expr 2 \* $(CORES))
# Notebooks wait for the runs that they launch: three workers for two cores, which nbdev_test would not take by itself.
NOTEBOOK_WORKERS ?= $(if $(filter command line environment,$(origin WORKERS)),$(WORKERS),$(shell expr \( 3 \* $(CORES) + 1 \) / 2))
REST_WORKERS ?= $(if $(filter command line environment,$(origin WORKERS)),$(WORKERS),$(shell expr 3 \* $(CORES)))
BIN := $(VENV)/bin
QUICKSTART := nbs/tutorials/00_quickstart.ipynb
# LONG=1 adds the whole contract on every engine, two hundred launches at once and every combination of layouts.
# K=words picks tests by name.
PYTEST = $(BIN)/python -m pytest --durations=15 $(if $(K),-k "$(K)") -n
TIER = $(if $(LONG),,not long and )

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test notebooks test-rest browser test-all costs coverage lint lab docs lock templates bench gpu prepare release clean

help:  ## List the commands
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  (PYTHON=python3.12 names another Python; WORKERS=2 is for a small machine, ALL=1 runs unchanged notebooks too, LONG=1 adds the longest)"

setup:  ## Make the environment in .venv from the lock (the others do this by themselves)
	@$(PYTHON) tools/environment.py --venv $(VENV)

quickstart: setup  ## Run the main job: launch a training from a notebook and bring the model back
	@$(BIN)/python tools/quickstart.py $(QUICKSTART)

test: setup  ## Run the notebooks and the tests, with one run or more on each engine (minutes; prints the slowest 15)
	@$(PYTEST) $(WORKERS) -m "$(TIER)(not slow or smoke)"

notebooks: setup  ## Run every notebook in its own workers with nbdev_test (FLAGS=slow adds the slow cells)
	@OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/nbdev_test --n_workers $(NOTEBOOK_WORKERS) --flags "$(FLAGS)"

test-rest: setup  ## Run what `make test` leaves out (SHARE=2/10 is the second tenth of it)
	@$(PYTEST) $(REST_WORKERS) -m "$(TIER)(slow and not smoke)"

browser: setup  ## Run the tests in a browser (TIMES=10 runs them ten times in a row)
	@for n in $$(seq $(or $(TIMES),1)); do $(PYTEST) $(CORES) -m "$(TIER)browser" || exit 1; done

test-all: setup  ## Run all notebooks and all tests
	@$(PYTEST) $(WORKERS) -m "$(TIER)(slow or not slow)"

costs: setup  ## Measure what each test costs on an idle machine (tests/support/costs.json: what `make test` leaves out)
	@COSTS=1 ALL=1 $(PYTEST) $(WORKERS) -m "$(TIER)(slow or not slow)"

coverage: setup  ## Run `make test` and measure: the total, and each file's lines in coverage.txt
	@rm -rf .coverage-data && mkdir .coverage-data
	@export COVERAGE_FILE="$(CURDIR)/.coverage-data/data"; ALL=1 $(BIN)/python -m coverage run -m pytest -n $(WORKERS) -m "$(TIER)($(if $(FULL),slow or not slow,not slow or smoke))"; status=$$?; \
	$(BIN)/python -m coverage combine -q && $(BIN)/python -m coverage report > coverage.txt; tail -1 coverage.txt; echo "each file: coverage.txt"; exit $$status

lab: setup  ## Open JupyterLab on the quickstart
	@PATH="$(abspath $(BIN)):$$PATH" JUPYTER_PREFER_ENV_PATH=1 $(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) --LabApp.default_url=/lab/tree/$(QUICKSTART)

docs: setup  ## Build the documentation site in _docs (with Quarto where it is installed) and walk it in a browser
	@$(BIN)/python tools/docs.py

prepare: setup  ## Before a commit: export, clean, refresh README.md and the docs' sidebar
	@$(BIN)/nbdev_export
	@$(BIN)/nbdev_clean
	@$(BIN)/python tools/docs.py --sidebar-only
	@$(BIN)/python tools/readme.py

lint: setup  ## Check format, lint, layers, types, spelling, complexity and shell (ONLY="ruff types" runs some)
	@$(BIN)/python tools/lint.py $(ONLY)

release: setup  ## Build the sdist and the wheel of this version and tag it (DRY=1 only shows)
	@$(BIN)/python tools/release.py $(if $(DRY),--dry-run)

lock: setup  ## Compile requirements/*.txt anew, with digests (UPGRADE=1 takes newer versions)
	@$(BIN)/python tools/lock.py $(if $(UPGRADE),--upgrade)
	@$(BIN)/python tools/template_locks.py

templates: setup  ## Make, launch, test and document each template, and write what it took into templates/results.json
	@RECORD=1 $(BIN)/python -m pytest -n 0 tests/front/test_templates.py::test_template

bench: setup  ## Run the measurements against peers, side by side
	@set -e; for script in bench/bench_*.py; do echo "== $$script"; $(BIN)/python $$script; done

# Nothing is set up or fetched: the Python that is named, else that of .venv where there is one.
GPU_PYTHON = $(if $(filter file,$(origin PYTHON)),$(firstword $(wildcard $(BIN)/python) $(PYTHON)),$(PYTHON))
gpu:  ## Check and measure all that needs a GPU, in nine minutes (WHEELS=folder, PYTHON=python3, ONLY=rows)
	@$(GPU_PYTHON) tools/gpu.py $(if $(WHEELS),--wheels $(WHEELS)) $(if $(ONLY),--only $(ONLY)) $(if $(JSON),--json $(JSON))

clean:  ## Remove what was built (keeps .venv and your runs)
	@rm -rf _proc _docs _quickstart build dist *.egg-info .pytest_cache .coverage-data coverage.txt
	@find . -name __pycache__ -type d -not -path "./$(VENV)/*" -prune -exec rm -rf {} +
	@echo "removed build products; .venv and .fsdl (your runs) were kept"
