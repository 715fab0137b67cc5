# make demo: see it work. make test: all checks. Both make the environment they need.

PYTHON ?= python3
VENV ?= .venv
DIST ?= dist
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint wheel clean

demo: $(VENV)/.installed-demo
	$(BIN)/python -m bench train

test: lint
	$(BIN)/python -m pytest -q

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

wheel: $(VENV)/.installed-dev
	$(BIN)/python -m build --outdir $(DIST) .

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "sparsekit needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "making the environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed-demo: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing sparsekit with torch (torch is large: the first time takes a while)"
	$(PIP) -e '.[bench]'
	@touch $@

$(VENV)/.installed-dev: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing sparsekit with torch and the developer tools (the first time takes a while)"
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.installed-demo

clean:
	rm -rf $(VENV) build $(DIST) *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
