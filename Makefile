# make audit: a first audit. make test: everything CI runs. make FAISS=gpu audit: with FAISS for NVIDIA GPUs.
PYTHON ?= python3
FAISS ?= cpu
STORE ?= memlib-store
BIN := .venv/bin

.PHONY: audit test test-slow lint clean help

help:
	@echo "make audit      make .venv, run the embedded audit, print a table and the path of the report"
	@echo "make test       ruff, mypy, import-linter and pytest, in the same environment"
	@echo "make test-slow  the tests that take minutes"
	@echo "make clean      remove .venv and caches"

audit: .venv/installed
	$(BIN)/memlib run deja-vu --recipe smoke --store $(STORE)

test: lint
	$(BIN)/pytest

test-slow: .venv/installed-test
	$(BIN)/pytest -m slow

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "memlib needs Python 3.11 or later; make PYTHON=python3.12 ..."; exit 2; }
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(FAISS)]'
	@touch $@

.venv/installed-test: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(FAISS),test]'
	@touch $@ .venv/installed

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
