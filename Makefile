# The commands of README.md. They need Python 3.11 or newer with pip and venv; all else is installed into .venv, and
# nothing needs root.
#
#   PYTHON     which Python makes .venv           make test PYTHON=python3.12
#   VIDEOS     a folder of videos for the demo    make demo VIDEOS=/data/clips
#   BUCKET     where demo-s3 packs to             make demo-s3 BUCKET=s3://mine/demo
#   PIP_ARGS   more for `pip install`             make demo PIP_ARGS=--no-cache-dir
#   JOBS       tests that run at a time           make test JOBS=2
PYTHON ?= python3
VIDEOS ?=
BUCKET ?=
PIP_ARGS ?=
# Of a test file, one after the other: they share datasets. One more than cores, up to 4, because many start processes of
# their own, and wait for them.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n > 2 ? 4 : n + 1)))

VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed

# Where it is set, each of the hundreds of processes that tests start compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo demo-s3 test lint bench clean

help:
	@echo "make demo [VIDEOS=folder]   pack videos, stream them on two ranks, show what came out"
	@echo "make demo-s3 [BUCKET=url]   the same with the dataset in a bucket, by default of a Ceph of its own"
	@echo "make test                   all that CI runs: lint, types, tests"
	@echo "make lint                   ruff and mypy alone"
	@echo "make bench                  the quick form of the benchmark"
	@echo "make clean                  remove what these commands made, .venv too"

install: $(INSTALLED)

# Installed anew whenever the requirements or the native part change.
$(INSTALLED): pyproject.toml setup.py constraints.txt $(wildcard streamvid/native/*.c)
	@$(PYTHON) -c 'import sys; sys.exit("streamvid needs Python 3.11 or newer: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --disable-pip-version-check --quiet $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(INSTALLED)
	$(RUN) -m tools.demo $(if $(VIDEOS),--videos "$(VIDEOS)")

demo-s3: $(INSTALLED)
	$(RUN) -m tools.demo --s3 $(BUCKET) $(if $(VIDEOS),--videos "$(VIDEOS)")

test: lint
	$(RUN) -m pytest -n $(JOBS) --dist loadfile

lint: $(INSTALLED)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

bench: $(INSTALLED)
	$(RUN) -m tools.bench.stream --quick

clean:
	rm -rf $(VENV) demo-data build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
