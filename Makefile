# Every target does its own set-up: on a machine with Python, make and a C++ compiler, `make quickstart` is enough.
#   make setup       the environment .venv alone          make check   style, types, layers
#   make quickstart  the main job on a small corpus       make test    the tests, but for the slow ones
#   make docs        the manual, into docs/_build         make slow    the slow tests
#   make bench       speed beside other programs          make bench-long   memory, scaling
#   make gpu         the tests that need a GPU
#   make lock        locked-*.txt: versions, hashes  make wheel       dist/: source archive and wheel
#   make release-check  build the release, install it without an index, and use it (3 GB)
#   make clean       remove what was built, .venv included
# PYTHON=/path/to/python make setup    takes that Python instead of the first fitting one on the PATH.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help setup quickstart test slow gpu check bench bench-long docs lock wheel release-check clean

PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
OLDER := $(VENV)/transformers4
PEERS := $(VENV)/.peers
LOCKED := 3.11 3.12 3.13
TESTERS := $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 4 ? n : 4)))

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -10

setup: $(STAMP)

# The stamp is written last, so an interrupted set-up is done again. A broken .venv, or another Python's, is replaced.
$(STAMP): pyproject.toml constraints.txt
	@python=""; \
	for candidate in $(or $(PYTHON),python3.11 python3 python3.12 python3.13 python3.14); do \
	  if $$candidate -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    python=$$candidate; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "make setup: needs Python 3.11 or newer with the modules venv and ensurepip (Debian: apt-get install python3-venv);" >&2; \
	  echo "            looked for: $(or $(PYTHON),python3.11 python3 python3.12 python3.13 python3.14). Name one with PYTHON=/path/to/python" >&2; \
	  exit 1; \
	fi; \
	if ! command -v c++ >/dev/null; then \
	  echo "make setup: no C++ compiler (c++) was found; models are compiled while they train (Debian: apt-get install g++)" >&2; \
	  exit 1; \
	fi; \
	echo "make setup: $$($$python --version) into $(VENV), a few minutes the first time" >&2; \
	rm -f $(STAMP); \
	version=$$($$python -c 'import sys; print("(python %d.%d)" % sys.version_info[:2])'); \
	if ! $(BIN)/python -m pip --version 2>/dev/null | grep -qF "$$version"; then \
	  $$python -m venv --clear $(VENV); \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  --no-build-isolation --editable '.[dev,docs]'
	@touch $(STAMP)

quickstart: setup
	$(BIN)/bertwright quickstart --out quickstart

# The tests start some hundred processes, which all compile the source anew where no bytecode is kept.
test slow: export PYTHONDONTWRITEBYTECODE =

test: setup
	$(BIN)/python -m pytest --numprocesses $(TESTERS) --dist loadfile --no-loadscope-reorder

# Beside the environment, for the tests that open our model folders with it.
$(OLDER): $(STAMP) tests/transformers4.txt
	rm -rf $(OLDER) $(OLDER).new
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(OLDER).new -r tests/transformers4.txt
	mv $(OLDER).new $(OLDER)
	touch $(OLDER)

# pytest answers 5 when it found no test to run: that is said, and is no failure of the code.
slow: setup $(OLDER)
	@status=0; $(BIN)/python -m pytest -m slow --numprocesses $(TESTERS) --dist loadfile --no-loadscope-reorder || status=$$?; \
	if [ $$status -eq 5 ]; then echo "make slow: no test is marked slow, nothing was run" >&2; status=0; fi; \
	exit $$status

gpu: setup
	$(BIN)/python -m pytest -m gpu tests/gpu

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports --no-logo
	$(BIN)/python .ci/house.py

# The peers that are no oracles of the tests are installed when they are first asked for.
$(PEERS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  --no-build-isolation --editable '.[bench]'
	touch $(PEERS)

bench: $(PEERS)
	$(BIN)/python -m benchmarks

bench-long: $(PEERS)
	$(BIN)/python -m benchmarks --long

docs: setup
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# What the program needs, with versions and hashes, on Linux x86-64, a file for each version of Python. Wheels are not
# downloaded where the index has their metadata.
lock: setup
	for version in $(LOCKED); do \
	  $(BIN)/python -m pip install --quiet --dry-run --ignore-installed --no-build-isolation --python-version $$version \
	    --only-binary :all: --target .lock --report .lock.json -c constraints.txt .; \
	  $(BIN)/python .ci/lock.py .lock.json $$version > locked-$$version.txt; \
	done
	rm -rf .lock .lock.json

wheel: setup
	rm -f dist/bertwright-*
	$(BIN)/python -m build --no-isolation
	@ls -l dist | awk 'NR > 1 { print $$5 " bytes  " $$9 }'
	@$(BIN)/python -X importtime -c 'import bertwright' 2>&1 | awk -F'|' '/ bertwright$$/ { print $$2/1000 " ms to import bertwright" }'

# WHEELS=FOLDER make release-check    takes the wheels of the dependencies from there instead of downloading them.
release-check: setup
	$(BIN)/python .ci/release.py $(if $(WHEELS),--wheels $(WHEELS))

clean:
	rm -rf $(VENV) .matrix build dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
