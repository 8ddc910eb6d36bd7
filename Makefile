# Only Python >= 3.11 and make are needed: every target makes .venv first and installs what it lacks.

VENV := .venv
BIN := $(VENV)/bin
# A shim that names a Python may still have none behind it, so each candidate is run.
FIND_PYTHON = for p in $(PYTHON) python3.11 python3 python3.12 python3.13 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done
PIP = $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check
JOBS ?= 2
MEASUREMENTS = $(wildcard benchmarks/published/*.csv)
SOURCES = $(shell find src -name "*.py" -o -name "*.c" -o -name kernel_signatures.json)
DEMO = llama-3.1-405b h100-sxm:16384 --seq-len 8192 --global-batch 2048

# Tests start many Pythons, and each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help env demo test browser proof fuzz lock check format bench docs notebooks guide accuracy fresh clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

$(VENV)/bin/python:
	@python="$$($(FIND_PYTHON))"; \
	if [ -z "$$python" ]; then echo "error: no Python 3.11 or newer found" >&2; echo "hint: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; fi; \
	echo "making $(VENV) with $$($$python --version)"; \
	$$python -m venv $(VENV)

$(VENV)/.runs: pyproject.toml | $(VENV)/bin/python
	@echo "installing shardwright (once)"
	@SHARDWRIGHT_BUILD_KERNELS=no $(PIP) --editable .
	@touch $@

$(VENV)/.develops: pyproject.toml | $(VENV)/bin/python
	@echo "installing shardwright and its development tools (once)"
	@SHARDWRIGHT_BUILD_KERNELS=no $(PIP) --editable '.[dev]'
	@touch $(VENV)/.runs $@

$(VENV)/.browses: pyproject.toml | $(VENV)/.develops
	@echo "installing what the tests of pages need (once)"
	@SHARDWRIGHT_BUILD_KERNELS=no $(PIP) --editable '.[browser,web]'
	@touch $@

$(VENV)/.documents: pyproject.toml | $(VENV)/.develops
	@echo "installing what the documentation needs (once)"
	@SHARDWRIGHT_BUILD_KERNELS=no $(PIP) --editable '.[docs,notebooks]'
	@touch $@

# Machine code of kernels, with the numba that was just installed; those whose source is the same are not compiled again. Without a C
# compiler it says so (exit code 1), and they run as numba compiles them; a kernel that cannot be compiled (exit code 2) is an error.
$(VENV)/.kernels: $(VENV)/.runs $(SOURCES)
	@echo "building kernels"
	@$(BIN)/python -m shardwright.build_kernels || test $$? -eq 1
	@touch $@

env: $(VENV)/.develops $(VENV)/.kernels ## make .venv with the package and its development tools, and check messages of commits
	@git config core.hooksPath .githooks 2>/dev/null && git config blame.ignoreRevsFile .git-blame-ignore-revs || true

demo: $(VENV)/.runs $(VENV)/.kernels ## plan Llama-3.1 405B on 16,384 H100 and print the answer
	@$(BIN)/shardwright plan $(DEMO)

test: $(VENV)/.develops $(VENV)/.kernels ## check every claim on some cases (8 minutes on 2 cores, 10 in a new environment; TESTS=tests/search for a part)
	@$(BIN)/python -m pytest -q -n $(JOBS) $(TESTS)

browser: $(VENV)/.browses $(VENV)/.kernels ## open pages in headless Chromium: sizes, accessibility, no message and no request (CHROMIUM=/path/to/it)
	@$(BIN)/python -m pytest -q -m browser $(or $(TESTS),tests/browser)

proof: $(VENV)/.develops $(VENV)/.kernels ## the long proofs, on random cases of a new seed (SHARDWRIGHT_SEED=... repeats one)
	@$(BIN)/python -m pytest -q -n $(JOBS) -m proof $(TESTS)

fuzz: $(VENV)/.develops $(VENV)/.kernels ## a million inputs of a new seed over all parsers (SHARDWRIGHT_SEED=... repeats one; 15 minutes)
	@$(BIN)/python -m tests.fuzz

lock: $(VENV)/.develops $(VENV)/.kernels ## compare the answers of 400 commands with those recorded in tests/lock/locked.tsv (2 CPU minutes)
	@$(BIN)/python tools/behaviour_lock.py --check --jobs $(JOBS)

check: $(VENV)/.develops ## format, lint, types and the import law
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy src
	@$(BIN)/lint-imports

format: $(VENV)/.develops ## format the code and mend what lint can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.develops $(VENV)/.kernels ## time the bars (idle 2-core machine, median of 7)
	@$(BIN)/asv machine --yes >/dev/null
	@$(BIN)/asv run --python=same --show-stderr

docs: $(VENV)/.documents ## build the documentation as a static site in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet && echo "build/site/index.html"

notebooks: $(VENV)/.documents $(VENV)/.kernels ## execute the notebooks of docs/notebooks
	@$(BIN)/python tools/execute_notebooks.py

accuracy: $(VENV)/.runs $(VENV)/.kernels ## predict the project's own measured rows and write docs/accuracy.md and docs/serving-accuracy.md
	@$(BIN)/shardwright validate $(MEASUREMENTS) -o docs/accuracy.md --save-folds benchmarks/published/folds.json
	@$(BIN)/python tools/predictions_of_published_runs.py
	@$(BIN)/shardwright validate benchmarks/published/serving/*.csv -o docs/serving-accuracy.md --save-folds benchmarks/published/serving/slopes.json

guide: $(VENV)/.runs $(VENV)/.kernels ## write docs/guide: rules judged by searches, for eight cases (2 CPU minutes)
	@$(BIN)/python tools/guide_pages.py

fresh: ## the test suite from a fresh clone in a new environment
	@directory="$$(mktemp -d)"; trap 'rm -rf "$$directory"' EXIT; \
	git clone --quiet . "$$directory/shardwright" && $(MAKE) -C "$$directory/shardwright" check test

clean: ## remove the environment and the caches
	rm -rf $(VENV) build dist src/shardwright/_kernels.* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .asv
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
