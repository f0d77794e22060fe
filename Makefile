# Everything that a developer runs. A fresh machine needs only Python (3.11 or newer) and make: the first target
# creates .venv, and later ones update it when pyproject.toml, constraints.txt or the C module change. Without a C
# compiler everything works as well, but short steps take a few microseconds longer.
# Another Python: `make clean && make test PYTHON=python3.12`. One test: `.venv/bin/pytest tests/test_types.py`.

PYTHON ?= python3
# On two cores, three are faster than two: some tests wait, for workers or disks.
WORKERS ?= 3

# Compiling takes half of the time of the tests, so ask XLA to optimize less, also in most programs that the tests
# start. `make test TEST_XLA_FLAGS=` compiles everything as a user's programs are compiled.
TEST_XLA_FLAGS ?= --xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0 \
	--xla_cpu_parallel_codegen_split_count=1

# XLA aborts on flags that it does not know, and versions differ in what they know.
QUICK = XLA_FLAGS="$$($(1)/python tests/known_xla_flags.py $(TEST_XLA_FLAGS))"

# What `make test-oldest` and `make test-newest` run.
CORE_TESTS ?= tests/test_jax_internals.py tests/test_tiny.py tests/topology tests/tpu tests/cluster tests/values \
	tests/collectives tests/contexts tests/variables tests/strategies tests/native tests/conformance \
	tests/execution tests/training

BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: help test test-oldest test-newest check format bench bench-quick bench-peers clean

help:
	@echo "make test    all tests, then make check"
	@echo "make test-oldest, make test-newest  the core tests with the oldest and the newest JAX"
	@echo "make test-package  build the wheel and the source distribution, and try them in empty environments"
	@echo "make coverage  which lines the tests run, with pages in build/coverage"
	@echo "make check   formatting, lint, types, import order"
	@echo "make format  let ruff format and fix what it can"
	@echo "make bench   all benchmarks: tables, JSON and a page with plots in build/bench"
	@echo "make bench-quick, make bench-peers  some of them in five minutes; install what they compare with"
	@echo "make docs    the documentation as a site, in build/docs"
	@echo "make demo    train a small classifier on all devices, and draw a picture in build/demo"
	@echo "make doctor  check this machine: packages, devices, cluster, collectives, training"
	@echo "make clean   remove .venv and caches"

# What an installation is made from, besides the Python files: the C module is compiled.
SOURCES := pyproject.toml constraints.txt hatch_build.py src/replicax/_native/_warm.c

$(INSTALLED): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m compileall -q src
	touch $@

test: $(INSTALLED)
	$(call QUICK,$(BIN)) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
	$(MAKE) check

# The release that pyproject.toml asks for: 0.10.2 for "jax>=0.10.2".
OLDEST_JAX = $(shell sed -n 's/.*"jax>=\([0-9.]*\)".*/\1/p' pyproject.toml)

test-oldest: build/oldest/.installed
	$(call QUICK,build/oldest/bin) build/oldest/bin/python -m pytest -n $(WORKERS) --dist worksteal $(CORE_TESTS)

build/oldest/.installed: $(SOURCES)
	test -x build/oldest/bin/python || $(PYTHON) -m venv build/oldest
	grep -v '^jax' constraints.txt > build/oldest/constraints.txt
	build/oldest/bin/python -m pip install --quiet --constraint build/oldest/constraints.txt \
		'jax==$(OLDEST_JAX)' 'jaxlib==$(OLDEST_JAX)' --editable '.[dev]'
	touch $@

# The newest JAX may need a newer Python: `make test-newest PYTHON=python3.12`.
test-newest:
	test -x build/newest/bin/python || $(PYTHON) -m venv build/newest
	build/newest/bin/python -m pip install --quiet --upgrade jax jaxlib flax --editable '.[dev]'
	$(call QUICK,build/newest/bin) build/newest/bin/python -m pytest -n $(WORKERS) --dist worksteal $(CORE_TESTS)

# Which lines the tests run. A part: `make coverage COVERED=tests/values`.
.PHONY: coverage
coverage: .venv/.coverage_installed
	$(call QUICK,$(BIN)) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --cov --cov-report=term:skip-covered \
		--cov-report=html:build/coverage $(COVERED)

.venv/.coverage_installed: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pytest-cov
	touch $@

# The wheel and the source distribution, each installed into an empty environment.
.PHONY: test-package
test-package:
	rm -rf build/package
	$(PYTHON) -m venv build/package/builder
	build/package/builder/bin/python -m pip install --quiet build twine
	build/package/builder/bin/python -m build --outdir build/package/dist .
	build/package/builder/bin/python -m twine check --strict build/package/dist/*
	for file in build/package/dist/*; do \
		rm -rf build/package/empty && $(PYTHON) -m venv build/package/empty && \
		build/package/empty/bin/python -m pip install --quiet --constraint constraints.txt $$file && \
		build/package/empty/bin/python -I tests/installed.py || exit 1; \
	done

check: $(INSTALLED)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python tests/typing/check.py
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# Parts that have results in build/bench are not measured again: `make bench` continues a run that was
# interrupted. `make bench BENCH="--again --only training"` measures some of them again.
BENCH ?=

bench: $(INSTALLED)
	$(BIN)/python benchmarks/suite.py $(BENCH)

# In five minutes: fails if a ratio exceeds its limit in benchmarks/limits.toml.
bench-quick: $(INSTALLED)
	$(BIN)/python benchmarks/suite.py --quick $(BENCH)

# Other frameworks to compare with, each in an environment of its own; one that can not be installed is left out.
bench-peers: build/peers/tensorflow/.installed build/peers/torch/.installed

build/peers/tensorflow/.installed: PACKAGES = tensorflow-cpu
build/peers/torch/.installed: PACKAGES = torch accelerate lightning-fabric
build/peers/%/.installed:
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	-$(@D)/bin/python -m pip install --quiet numpy $(PACKAGES) && touch $@

# The folder docs/ exists, so make must be told that this target is not a file.
.PHONY: docs
docs: .venv/.docs_installed
	$(BIN)/python -m sphinx -q -W --keep-going -d build/doctrees docs build/docs
	@echo "built build/docs/index.html"

.venv/.docs_installed: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

# Both need fewer packages than a developer does.
.PHONY: demo doctor
demo: .venv/.demo_installed
	$(BIN)/python -m replicax demo --output build/demo

doctor: .venv/.demo_installed
	$(BIN)/python -m replicax doctor

.venv/.demo_installed: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[demo]'
	$(BIN)/python -m compileall -q src
	touch $@

clean:
	rm -rf .venv .coverage .pytest_cache .ruff_cache .hypothesis .import_linter_cache .mypy_cache build dist
	rm -f src/replicax/_native/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
