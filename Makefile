# Needs Python 3.11 or later, make and a package index; everything else is installed into .venv from requirements.lock.
# `make check` is exactly what CI runs (.ci/run installs Java and Maven first and sets KAFKA=required).

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# PYTHON=/path/to/python chooses one; else the first that is new enough.
PYTHON ?=
# More arguments for demo, test, test-kafka.
ARGS ?=
# required: `make check` fails without Java and Maven. Else it says that Apache Kafka was not checked.
KAFKA ?= if-present
# Comma-separated names of benchmarks; empty for all.
ONLY ?=

# `make check` has so many processes run the tests in these directories: their servers are theirs alone, and nothing in
# them looks at the clock of a busy machine. All others follow one by one.
WORKERS ?= 2
SPREAD := tests/contracts tests/dashboards tests/oracle tests/processors tests/sinks

# Without I/O, so every line can be reached by a plain test: at least 95 % of them are.
PURE := engine ladder detections state steps allowlist remedies visibility
space := $(subst ,, )
comma := ,
PURE_FILES := $(subst $(space),$(comma),$(foreach name,$(PURE),penaltybox/processors/$(name).py))

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-kafka check lint format types imports coverage wheel kafka-if-possible bench docs lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(INSTALLED) ## make .venv and install everything from the lock file

$(INSTALLED): requirements.lock pyproject.toml
	@chosen="$(PYTHON)"; \
	if [ -z "$$chosen" ]; then \
	  for candidate in python3.13 python3.12 python3.11 python3.14 python3; do \
	    if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then chosen=$$candidate; break; fi; \
	  done; \
	fi; \
	if [ -z "$$chosen" ]; then echo "penaltybox needs Python 3.11 or later and found none. Install one, or: make PYTHON=/path/to/python"; exit 1; fi; \
	echo "Setting up $(VENV) with $$($$chosen --version)"; \
	rm -f $(INSTALLED); \
	$$chosen -m venv --clear $(VENV) || { echo "$$chosen cannot make a virtual environment. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --no-compile --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $(INSTALLED)

demo: $(INSTALLED) ## see it work: real servers, real log, penalties, blocklist, figures (two minutes)
	$(BIN)/penaltybox demo $(ARGS)

test: $(INSTALLED) ## all tests, on the embedded broker, Redis and ClickHouse
	$(BIN)/python -m pytest $(ARGS)

test-kafka: $(INSTALLED) ## the stack tests against Apache Kafka (needs Java 17 and Maven)
	$(BIN)/python -m pytest --kafka tests/stack $(ARGS)

check: lint types imports coverage wheel kafka-if-possible ## everything that CI runs

lint: $(INSTALLED) ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED) ## mypy, strict
	$(BIN)/mypy

imports: $(INSTALLED) ## which stage may import which
	$(BIN)/lint-imports

coverage: $(INSTALLED) ## all tests, with the bars for the parts without I/O
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(SPREAD) --cov --cov-report= $(ARGS)
	$(BIN)/python -m pytest $(addprefix --ignore=,$(SPREAD)) --cov --cov-append --cov-report= $(ARGS)
	$(BIN)/coverage report --skip-covered --include='penaltybox/contracts/*' --fail-under=95
	$(BIN)/coverage report --skip-covered --include='$(PURE_FILES)' --fail-under=95

wheel: $(INSTALLED) ## build the wheel and use it from outside the repository
	rm -rf build/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .
	$(BIN)/python .ci/try_wheel.py build/wheel

kafka-if-possible:
	@if [ "$(KAFKA)" = required ] || { command -v mvn && command -v java; } >/dev/null 2>&1; then \
	  $(MAKE) --no-print-directory test-kafka; \
	else \
	  echo "NOT CHECKED: Apache Kafka. It needs Java 17 and Maven on the PATH; CI requires both."; \
	fi

bench: $(INSTALLED) ## benchmarks as JSON lines; ONLY=name[,name] picks
	ONLY=$(ONLY) $(BIN)/python -m benchmarks

format: $(INSTALLED) ## let ruff format and fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(INSTALLED) ## renew the pages that are made from the code: schemas, subjects, ladder, commands, decisions, dashboards
	$(BIN)/python -m penaltybox.contracts.schemas
	$(BIN)/python -m tests.contracts.subject_vectors
	$(BIN)/python -m tests.ladder_page
	$(BIN)/python -m tests.docs.generated_pages
	$(BIN)/python -m dashboards

lock: ## renew requirements.lock and the image's part of it (needs uv)
	uv pip compile --quiet pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
	  --custom-compile-command 'make lock' --output-file requirements.lock
	uv pip compile --quiet pyproject.toml --extra image --constraint requirements.lock --universal \
	  --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command 'make lock' \
	  --output-file requirements-image.lock

clean: ## remove .venv, builds and caches
	rm -rf $(VENV) build dist .kafka .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
