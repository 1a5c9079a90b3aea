# Each target sets up what it needs in .venv, once. On a fresh machine Python 3.11 and make are enough.
# The tests are dealt out to two processes of one thread: their models are too small for two threads.
PYTHON ?= python3.11
BIN := .venv/bin
READY := .venv/installed

.PHONY: quickstart reproduce test slow robust check docs clean

quickstart: $(READY)  ## train on the embedded corpus, save, load, translate
	rm -rf runs/quickstart
	$(BIN)/python examples/quickstart.py

reproduce: $(READY)  ## every table and figure of the paper at smoke scale, and a report
	$(BIN)/python examples/reproduce/report.py

test: $(READY)  ## the fast tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

slow: $(READY)  ## the tests that take longer
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m slow

robust: $(READY)  ## bad input, malicious folders, kills, properties and load of every command, and their figures
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m slow tests/robustness

check: $(READY)  ## formatting and lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

docs: $(READY)  ## the site in site/, without the network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv runs build site *.egg-info

# torch comes first and alone: the pinned version is taken as it stands, and what needs torch then finds it there.
$(READY): setup.py constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test]"
	touch $@
