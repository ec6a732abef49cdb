# `make serve` runs the service, `make test` the whole suite. Everything they need is put into .venv, pinned by hash.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-header
ARGS ?=
MONEY := tests/unit/pricing tests/unit/core tests/unit/scenarios

.PHONY: install install-dev serve test check audit-dependencies format mutation torture bench bench-history bench-reads bench-overload soak lock clean

install: .venv/installed

install-dev: .venv/installed-dev

.venv/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or later is needed: make PYTHON=…")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/installed: .venv/python requirements.lock pyproject.toml
	$(PIP) --require-hashes --requirement requirements.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	touch $@

.venv/installed-dev: .venv/installed requirements-dev.lock
	$(PIP) --require-hashes --requirement requirements-dev.lock
	touch $@

serve: install
	$(BIN)/gateway-ledger serve $(ARGS)

test: install-dev
	$(BIN)/pytest --numprocesses 2 --dist loadfile $(ARGS)

check: install-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q $(MONEY) --cov=pricing --cov=ledger.core --cov-branch --cov-report=term-missing --cov-fail-under=100
	$(BIN)/python -m tests.dependencies

# Which of the pinned versions have known vulnerabilities? `make check` asks too, and passes where it gets no answer.
audit-dependencies: install-dev
	$(BIN)/python -m tests.dependencies --required

# Changes pricing and ledger/core bit by bit and runs their tests on each change: tests/mutation/README.md.
mutation: install-dev
	$(BIN)/mutmut run --max-children 2
	$(BIN)/mutmut results
	$(BIN)/python -m tests.mutation.outside

format: install-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Takes less than ten minutes; ARGS="--only engine,http --rounds 1 --seconds 3" takes one.
bench: install-dev
	$(BIN)/python -m tests.benchmarks.bench $(ARGS)

# These take 10 GB of disk under TMPDIR and twenty minutes; ARGS="--postings 2000000" takes less.
bench-history: install-dev
	$(BIN)/python -m tests.benchmarks.history $(ARGS)

bench-reads: install-dev
	$(BIN)/python -m tests.benchmarks.reads $(ARGS)

# Ten times what the service can take: a minute and a half.
bench-overload: install-dev
	$(BIN)/python -m tests.benchmarks.overload $(ARGS)

# Two hours at a steady rate; ARGS="--hours 0.05 --window 0.25 --warm-up 4" takes three minutes.
soak: install-dev
	$(BIN)/python -m tests.benchmarks.soak $(ARGS)

# Kills 500 processes, which takes half an hour; ARGS="--seed X" repeats a plan, ARGS="--kills 50" is shorter.
torture: install-dev
	$(BIN)/python -m tests.torture.command $(ARGS)

# Takes the newest versions that pyproject.toml admits; the second file repeats the first and adds the tools.
lock: install-dev
	$(COMPILE) --upgrade --extra build --output-file requirements.lock pyproject.toml
	$(COMPILE) --upgrade --extra build --extra dev --constraint requirements.lock --output-file requirements-dev.lock pyproject.toml

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage htmlcov mutants build *.egg-info
