# `make demo` and `make test` are all that a newcomer needs; both make the environment first and can be run again and again.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := true

.PHONY: help env demo test ci lint types contracts quick services slow pythons wheel mlflow-range extras pictures bench study ui clean

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 18

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3,11) <= sys.version_info < (3,14) else "denominator needs Python 3.11, 3.12 or 3.13; this is %d.%d. Name another one: make PYTHON=python3.12 …" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)

# A stamp per kind of environment: made again when the project file or the pins change, or when the folder was moved.
$(VENV)/.user: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing denominator and its pinned dependencies into $(VENV) (about a minute the first time) …"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing denominator, its tools and its pinned dependencies into $(VENV) (about a minute the first time) …"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,joblib,peers]'
	@touch $@ $(VENV)/.user

env: $(VENV)/.dev ## the development environment in .venv

demo: $(VENV)/.user ## the default sweep on the bundled data, its record and its report
	@$(BIN)/denominator sweep
	@echo "        make ui: the same without activating $(VENV)"

test: $(VENV)/.dev lint types contracts quick ## lint, types, import contracts and the quick tests

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

contracts: $(VENV)/.dev
	$(BIN)/lint-imports

quick: $(VENV)/.dev
	$(BIN)/pytest -q -n 2 --dist loadfile -m "not slow and not service"

slow: $(VENV)/.dev
	TESTS_THOROUGH=1 $(BIN)/pytest -q -n 2 --dist loadfile

services: $(VENV)/.dev
	@bash .ci/services

ci: services slow pythons wheel mlflow-range ## what the quick suite leaves out: slow tests, other Pythons, the wheel in an empty environment

pythons: $(VENV)/.dev
	@bash .ci/pythons

wheel: $(VENV)/.dev
	@bash .ci/wheel

mlflow-range: $(VENV)/.dev
	@bash .ci/mlflow-range

extras: $(VENV)/.dev ## sentence-transformers, fastembed and other frameworks for real (torch: gigabytes; not part of ci)
	@bash .ci/extras

pictures: $(VENV)/.dev ## the pictures of docs/mlflow.md from the demo sweep (Chromium, Node.js with playwright-core)
	@$(BIN)/denominator sweep -q
	@$(BIN)/python docs/img/make.py

ui: $(VENV)/.user ## open the record in the MLflow UI
	@$(BIN)/denominator ui

clean: ## remove what the tools made (not denominator-out/)
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
