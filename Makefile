# make demo: see it work. make test: all checks. make fuzz FUZZ_SECONDS=600: hostile input for so long. All make the environment they need.

PYTHON ?= python3
VENV ?= .venv
DIST ?= dist
FUZZ_SECONDS ?= 600
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test fuzz lint bench wheel clean

demo: $(VENV)/.installed-demo
	$(BIN)/python -m bench train

test: lint
	$(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile

fuzz: $(VENV)/.installed-dev
	@end=$$(( $$(date +%s) + $(FUZZ_SECONDS) )); rounds=0; \
	while [ $$(date +%s) -lt $$end ]; do \
		seed=$$(od -An -N4 -tu4 /dev/urandom | tr -d ' '); rounds=$$((rounds + 1)); echo "round $$rounds, seed $$seed"; \
		HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -q tests/test_fuzz.py --hypothesis-seed=$$seed $(FUZZ) || exit 1; \
	done; echo "$$rounds rounds, nothing found"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed-peers
	$(BIN)/python -m bench run --quick

wheel: $(VENV)/.installed-dev
	$(BIN)/python -m build --outdir $(DIST) .

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "sparsekit needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "making the environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { \
		rm -rf $(VENV); echo "no environment made; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

$(VENV)/.installed-demo: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	@echo "installing sparsekit with torch (torch is large: the first time takes a while)"
	$(PIP) -e '.[bench]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	@echo "installing sparsekit with torch and the developer tools (the first time takes a while)"
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.installed-demo

$(VENV)/.installed-peers: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	@echo "installing sparsekit with torch and the bench's peers (the first time takes a while)"
	$(PIP) -e '.[peers]'
	@touch $@ $(VENV)/.installed-demo

clean:
	rm -rf $(VENV) build $(DIST) *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
