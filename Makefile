# Everything a fresh machine needs: `make train`. PYTHON chooses the interpreter (3.11 to 3.13).
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help train ui test test-all lint docs clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

train: $(VENV)/.core  ## set up .venv and run the default main job (ARGS="..." for overrides)
	$(BIN)/python -m src.train $(ARGS)

ui: $(VENV)/.core  ## MLflow UI on this project's runs, at http://127.0.0.1:5000
	$(BIN)/python -m mlflow ui --host 127.0.0.1 --workers 1 --backend-store-uri "sqlite:///$(CURDIR)/mlflow.db"

# Files in their order: the long integration tests first, so that both workers end together.
test: $(VENV)/.dev  ## unit and integration tests
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not gpu"

test-all: $(VENV)/.dev  ## all tests this machine can run, the slow ones too
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy

docs: $(VENV)/.core  ## write docs/options.md anew from the schema
	$(BIN)/python -m src.config.docs > docs/options.md

clean:  ## remove .venv and caches; runs and the MLflow store stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache

$(VENV)/.core: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed; name one with make PYTHON=/path/to/python"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
