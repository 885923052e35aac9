# Each target sets up what it needs in .venv; there is no step before them.
PYTHON ?= python3
BIN = .venv/bin
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

demo: .venv/ready
	$(BIN)/python -m benchmarks.ops --quick

bench: .venv/ready
	$(BIN)/python -m benchmarks.ops --write docs
	$(BIN)/python -m benchmarks.ops --reuse --write docs
	$(BIN)/python -m benchmarks.train --write docs
	$(BIN)/python -m benchmarks.data --write docs
	$(BIN)/python -m benchmarks.scaling
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m benchmarks.generate --write docs

sanitize: .venv/ready
	$(BIN)/python -m tests.sanitize

.venv/ready: pyproject.toml setup.py constraints.txt $(wildcard src/lightconv/ops/csrc/*)
	$(PYTHON) -m venv .venv
	@echo "installing lightconv and its test tools into .venv (a minute or two)"
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

clean:
	rm -rf .venv build dist src/*.egg-info src/lightconv/ops/_kernels*
