# Each target sets up what it needs in .venv; there is no step before them.
PYTHON ?= python3
BIN = .venv/bin
TASK ?= translation
export LIGHTCONV_REQUIRE_NATIVE = 1

.PHONY: test test-slow check demo bench sanitize clean

test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

test-slow: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal -m slow

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# TASK=translation, lm or summary; the page is runs/demo-TASK/report.html. Without the test tools,
# unless they are there already.
demo: $(if $(wildcard .venv/ready),.venv/ready,.venv/demo)
	$(BIN)/lightconv demo --task $(TASK)

bench: .venv/ready
	$(BIN)/python -m benchmarks.ops --write docs
	$(BIN)/python -m benchmarks.ops --reuse --write docs
	$(BIN)/python -m benchmarks.train --write docs
	$(BIN)/python -m benchmarks.overhead --write docs
	$(BIN)/python -m benchmarks.data --write docs
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m benchmarks.generate --write docs

sanitize: .venv/ready
	$(BIN)/python -m tests.sanitize

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

clean:
	rm -rf .venv build dist src/*.egg-info src/lightconv/ops/_kernels*
