# `make help` lists the commands. Each sets up what it needs first; a second set-up costs nothing.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BIN := $(VENV)/bin
QUICKSTART := nbs/tutorials/90_quickstart.ipynb
# One thread per process: two notebooks at a time on two cores would otherwise fight over them.
NBDEV_TEST := OMP_NUM_THREADS=1 $(BIN)/nbdev_test --n_workers $(WORKERS)

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test lab docs lock bench prepare clean

help:  ## List the commands
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  (PYTHON=python3.12 names another Python; make test FAST=1 leaves out the slow tests)"

setup:  ## Make the environment in .venv from the lock (the others do this by themselves)
	@$(PYTHON) tools/environment.py --venv $(VENV)

quickstart: setup  ## Run the main job: launch a training from a notebook and bring the model back
	@$(BIN)/python tools/quickstart.py $(QUICKSTART)

test: setup  ## Run the notebooks and the tests
	@echo "== notebooks (nbdev_test)"
	@$(NBDEV_TEST) $(if $(FAST),,--flags slow)
	@echo "== tests (pytest)"
	@$(BIN)/python -m pytest $(if $(FAST),-m "not slow")

lab: setup  ## Open JupyterLab on the quickstart
	@JUPYTER_PREFER_ENV_PATH=1 $(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) --LabApp.default_url=/lab/tree/$(QUICKSTART)

docs: setup  ## Build the documentation site in _docs (with Quarto where it is installed)
	@$(BIN)/python tools/docs.py

prepare: setup  ## Before a commit: export, clean, refresh README.md and the docs' sidebar
	@$(BIN)/nbdev_export
	@$(BIN)/nbdev_clean
	@$(BIN)/python tools/docs.py --sidebar-only
	@$(BIN)/python tools/readme.py

lock: setup  ## Compile requirements/dev.txt anew (UPGRADE=1 takes newer versions)
	@$(BIN)/python tools/lock.py $(if $(UPGRADE),--upgrade)

bench: setup  ## Run the measurements against peers, side by side
	@set -e; for script in bench/bench_*.py; do echo "== $$script"; $(BIN)/python $$script; done

clean:  ## Remove what was built (keeps .venv and your runs)
	@rm -rf _proc _docs _quickstart build *.egg-info .pytest_cache
	@find . -name __pycache__ -type d -not -path "./$(VENV)/*" -prune -exec rm -rf {} +
	@echo "removed build products; .venv and .fsdl (your runs) were kept"
