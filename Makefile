# Everything a developer runs. A fresh machine needs Python (3.11 or newer) and make only: the first target
# that needs it makes .venv, and it is brought up to date when pyproject.toml or constraints.txt change.
# Another Python: `make clean && make test PYTHON=python3.12`. One test: `.venv/bin/pytest tests/test_types.py`.

PYTHON ?= python3
WORKERS ?= 2

# Half of the time of the tests is compiling, so XLA is asked to be quick about it; programs that the tests start
# themselves compile as a user's do. `make test TEST_XLA_FLAGS=` compiles everything so.
TEST_XLA_FLAGS ?= --xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0

BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: help test check format bench clean

help:
	@echo "make test    all tests, then make check"
	@echo "make check   formatting, lint, types, import order"
	@echo "make format  let ruff format and fix what it can"
	@echo "make bench   benchmarks"
	@echo "make docs    the documentation as a site, in build/docs"
	@echo "make demo    train a small classifier on all devices, and draw a picture in build/demo"
	@echo "make doctor  check this machine: packages, devices, cluster, collectives, training"
	@echo "make clean   remove .venv and caches"

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m compileall -q src
	touch $@

test: $(INSTALLED)
	XLA_FLAGS="$(TEST_XLA_FLAGS)" $(BIN)/python -m pytest -n $(WORKERS)
	$(MAKE) check

check: $(INSTALLED)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(INSTALLED)
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/input.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/checkpoint.py
	$(BIN)/python benchmarks/nnx.py
	$(BIN)/python benchmarks/imports.py

# The folder docs/ exists, so make has to be told that this is a target of its own.
.PHONY: docs
docs: .venv/.docs_installed
	$(BIN)/python -m sphinx -q -W --keep-going -d build/doctrees docs build/docs
	@echo "built build/docs/index.html"

.venv/.docs_installed: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

# Both need less than a developer does.
.PHONY: demo doctor
demo: .venv/.demo_installed
	$(BIN)/python -m replicax demo --output build/demo

doctor: .venv/.demo_installed
	$(BIN)/python -m replicax doctor

.venv/.demo_installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo]'
	$(BIN)/python -m compileall -q src
	touch $@

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
