# `make help` lists the commands. Each sets up what it needs first; a second set-up costs nothing.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BIN := $(VENV)/bin
QUICKSTART := nbs/tutorials/00_quickstart.ipynb
# One thread per process: two notebooks at a time on two cores would otherwise fight over them.
NBDEV_TEST := OMP_NUM_THREADS=1 $(BIN)/nbdev_test --n_workers $(WORKERS)

# Two hundred launches at once take minutes for each target: LONG=1 has them too.
PYTEST = $(BIN)/python -m pytest $(if $(FAST),-m "not slow") $(if $(LONG),,-k "not test_crowd and not two_hundred")
# Ray's daemons give up on a busy machine, so its tests run alone; the others wait for clusters and hosts more than they compute.
SLURM_TESTS := $(wildcard tests/test_slurm*.py tests/test_worker_engine.py)
HOST_TESTS := $(wildcard $(addprefix tests/test_,ssh*.py sky.py kubernetes.py containers.py gang.py))
TRAIN_TESTS := $(wildcard $(addprefix tests/test_,ranks.py parallel*.py pipeline.py context.py memory_plan.py plan.py checkpoints.py exact_resume.py guards.py interval.py speed.py lora.py giants.py failures.py random_kills.py train_ddp.py))
OTHER_TESTS = $(filter-out tests/test_ray.py $(SLURM_TESTS) $(HOST_TESTS) $(TRAIN_TESTS),$(wildcard tests/test_*.py))

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test lint lab docs lock bench gpu prepare release clean

help:  ## List the commands
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  (PYTHON=python3.12 names another Python; make test FAST=1 leaves out the slow tests, LONG=1 adds crowds)"

setup:  ## Make the environment in .venv from the lock (the others do this by themselves)
	@$(PYTHON) tools/environment.py --venv $(VENV)

quickstart: setup  ## Run the main job: launch a training from a notebook and bring the model back
	@$(BIN)/python tools/quickstart.py $(QUICKSTART)

test: setup  ## Run the notebooks and the tests
	@echo "== notebooks (nbdev_test)"
	@$(NBDEV_TEST) $(if $(FAST),,--flags slow)
	@echo "== tests on a Ray cluster (pytest)"
	@$(PYTEST) tests/test_ray.py || [ $$? -eq 5 ]
	@echo "== tests (pytest; those on Slurm, on other hosts and of trainings run beside the others, and are shown after them)"
	@logs=$$(mktemp -d); trap 'rm -rf "$$logs"' EXIT; \
	$(PYTEST) $(SLURM_TESTS) > "$$logs/slurm" 2>&1 & slurm=$$!; \
	$(PYTEST) $(HOST_TESTS) > "$$logs/hosts" 2>&1 & hosts=$$!; \
	$(PYTEST) $(TRAIN_TESTS) > "$$logs/train" 2>&1 & train=$$!; \
	$(PYTEST) $(OTHER_TESTS); status=$$?; \
	wait $$slurm || status=1; wait $$hosts || status=1; wait $$train || status=1; cat "$$logs"/*; exit $$status

lab: setup  ## Open JupyterLab on the quickstart
	@JUPYTER_PREFER_ENV_PATH=1 $(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) --LabApp.default_url=/lab/tree/$(QUICKSTART)

docs: setup  ## Build the documentation site in _docs (with Quarto where it is installed)
	@$(BIN)/python tools/docs.py

prepare: setup  ## Before a commit: export, clean, refresh README.md and the docs' sidebar
	@$(BIN)/nbdev_export
	@$(BIN)/nbdev_clean
	@$(BIN)/python tools/docs.py --sidebar-only
	@$(BIN)/python tools/readme.py

lint: setup  ## Check format, lint, layers, types, spelling and shell (ONLY="ruff types" runs some)
	@$(BIN)/python tools/lint.py $(ONLY)

release: setup  ## Build the sdist and the wheel of this version and tag it (DRY=1 only shows)
	@$(BIN)/python tools/release.py $(if $(DRY),--dry-run)

lock: setup  ## Compile requirements/dev.txt anew (UPGRADE=1 takes newer versions)
	@$(BIN)/python tools/lock.py $(if $(UPGRADE),--upgrade)

bench: setup  ## Run the measurements against peers, side by side
	@set -e; for script in bench/bench_*.py; do echo "== $$script"; $(BIN)/python $$script; done

# Nothing is set up or fetched: the Python that is named, else that of .venv where there is one.
GPU_PYTHON = $(if $(filter file,$(origin PYTHON)),$(firstword $(wildcard $(BIN)/python) $(PYTHON)),$(PYTHON))
gpu:  ## Check and measure all that needs a GPU, in nine minutes (WHEELS=folder, PYTHON=python3, ONLY=rows)
	@$(GPU_PYTHON) tools/gpu.py $(if $(WHEELS),--wheels $(WHEELS)) $(if $(ONLY),--only $(ONLY)) $(if $(JSON),--json $(JSON))

clean:  ## Remove what was built (keeps .venv and your runs)
	@rm -rf _proc _docs _quickstart build dist *.egg-info .pytest_cache
	@find . -name __pycache__ -type d -not -path "./$(VENV)/*" -prune -exec rm -rf {} +
	@echo "removed build products; .venv and .fsdl (your runs) were kept"
