# make demo: what an audit finds, in seconds. make audit: a first audit. make test: everything CI runs. make FAISS=gpu audit: with FAISS for NVIDIA GPUs.
# make TORCH_INDEX=URL audit: PyTorch from another index, such as the one with its wheels for the CPU alone.
PYTHON ?= python3
FAISS ?= cpu
STORE ?= memlib-store
BIN := .venv/bin
OTHER := $(if $(filter gpu,$(FAISS)),cpu,gpu)
TORCH_INDEX ?=
# bytecode, and memlib's digests of its code beside it, are kept even where the environment would not
export PYTHONDONTWRITEBYTECODE :=
INSTALL = rm -f .venv/$(OTHER) .venv/$(OTHER)-test; $(BIN)/python locks/install.py --torch-index '$(TORCH_INDEX)'
FOR_GPU = $(if $(filter gpu,$(FAISS)),$(INSTALL) gpu)

.PHONY: demo audit check test suite test-ray test-slow test-rounding docs docs-test docs-pages docs-cells notebooks lint pins locks sbom validate image-check validity bench-check gpu-check drill drill-slurm drill-cluster faults fuzz clean help

help:
	@echo "make demo       make .venv, and show in seconds what an audit finds"
	@echo "make audit      make .venv, run the embedded audit, print a table and the path of the report"
	@echo "make check      ruff, mypy, import-linter and the unit tests: while you work"
	@echo "make test       ruff, mypy, import-linter, every test in process, and one run on Prefect and Ray"
	@echo "make test-ray   the tests that start Ray, Prefect or servers, or cost more than 5 CPU seconds"
	@echo "make test-slow  the tests that take minutes"
	@echo "make test-rounding  the tests that train, as other processors round, with other threads and seeds; before a release, an hour"
	@echo "make docs       build the documentation site into docs/_build/html; warnings are errors"
	@echo "make docs-test  run every command of README and docs, and every notebook, shortened where they are long"
	@echo "make notebooks  execute the notebooks of docs in place, after a change of what they show"
	@echo "make pins       after a change of a stage's code: say that its version is raised, or its results are the same"
	@echo "make locks      write locks/*.txt, the hashes of all that is installed, from constraints.txt"
	@echo "make sbom       write a CycloneDX list of all that is installed, memlib-cpu.cdx.json"
	@echo "make validate   manifests in deployments/ against schemas and linters, in an environment of its own"
	@echo "make image-check  the image, built by buildah and tried by a smoke audit; says what is missing; 30 GB while it runs"
	@echo "make validity PART=...  nulls and plants of every verdict on trained models; prints and records a part of the study"
	@echo "make bench-check  whether memlib is still as fast beside plain versions as it was, as ratios; minutes"
	@echo "make gpu-check  a GPU against the CPU: placement, stacks, resume, search, every objective; at most eight minutes"
	@echo "make faults     break every stage of every audit and run it again; adds the rows that evidence/faults.jsonl lacks, two hours for all"
	@echo "make fuzz       damage every kind of file that is read, 20,000 times; ten minutes"
	@echo "make drill      Prefect on PostgreSQL on this machine: kill, resume, retry, schedule"
	@echo "make drill-slurm  Slurm with two nodes on this machine: time limit, lost node, cancel, job array; half an hour"
	@echo "make drill-cluster  Prefect, S3 and three machines made of namespaces: cut cables, lost power; root, half an hour"
	@echo "make clean      remove .venv and caches"

demo: .venv/$(FAISS)
	$(BIN)/memlib demo --store $(STORE)

audit: .venv/$(FAISS)
	$(BIN)/memlib run deja-vu --recipe smoke --store $(STORE)

check: lint
	$(BIN)/pytest --numprocesses 2 --dist loadfile -m "not slow and not long" tests/memlib tests/tasks tests/flows tests/test_docs.py

test: .venv/$(FAISS)-test  # types are checked beside the tests
	@$(MAKE) --no-print-directory --jobs 2 lint suite

suite: .venv/$(FAISS)-test
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

test-ray: .venv/$(FAISS)-test  # three processes: runs wait for servers that start
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder -m 'ray and not slow' -rs tests

test-slow: .venv/$(FAISS)-test
	$(BIN)/pytest -m slow

test-rounding: .venv/$(FAISS)-test
	@$(BIN)/python benchmarks/rounding/run.py

lint: .venv/$(FAISS)-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/docs
	$(BIN)/python -m flows.reference
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

docs-test: .venv/docs  # the site and the notebooks beside the pages
	@$(MAKE) --no-print-directory --jobs 2 --keep-going docs-pages docs docs-cells

docs-pages: .venv/$(FAISS)-test
	$(BIN)/pytest -p commands -rs README.md docs/quick-start.md docs/tutorials docs/how-to

docs-cells: .venv/$(FAISS)-test
	$(BIN)/pytest -o testpaths= -m docs tests/docs/test_notebooks.py

notebooks: .venv/$(FAISS)-test
	$(BIN)/python tests/docs/test_notebooks.py

pins: .venv/$(FAISS)-test
	$(BIN)/python tests/tasks/test_declared.py

validate: .venv/validate/done
	.venv/validate/bin/python tests/deployments/validate.py

image-check:
	@deployments/check-image.sh

validity: .venv/$(FAISS)-test
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.validity $(PART)

bench-check: .venv/$(FAISS)-test
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/check.py

gpu-check: .venv/$(FAISS)
	@$(BIN)/python -m benchmarks.device

faults: .venv/$(FAISS)-test
	@PYTHONPATH=tests/end_to_end:tests/docs:. $(BIN)/python benchmarks/faults.py --results evidence/faults.jsonl

fuzz: .venv/$(FAISS)-test
	@PYTHONPATH=benchmarks/fuzz:tests/end_to_end:tests/docs:. $(BIN)/python -W ignore benchmarks/fuzz/fuzz.py

drill: .venv/$(FAISS)
	$(BIN)/python -m deployments.local.drill

drill-slurm: .venv/$(FAISS)
	$(BIN)/python -m deployments.slurm.drill

drill-cluster: .venv/$(FAISS)-test
	$(BIN)/python -m deployments.cluster.drill

.venv/docs: .venv/$(FAISS)-test
	$(INSTALL) docs
	$(FOR_GPU)
	@touch .venv/$(FAISS) .venv/$(FAISS)-test $@

.venv/validate/done: tests/deployments/requirements.txt constraints.txt
	$(PYTHON) -m venv .venv/validate
	.venv/validate/bin/python -m pip install --quiet -r $< -c constraints.txt
	@touch $@

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "memlib needs Python 3.11 or later; make PYTHON=python3.12 ..."; exit 2; }
	$(PYTHON) -m venv .venv

.venv/$(FAISS): .venv/bin/python pyproject.toml locks/$(FAISS).txt
	$(INSTALL) $(FAISS)
	@touch $@

.venv/$(FAISS)-test: .venv/bin/python pyproject.toml locks/test.txt
	$(INSTALL) test
	$(FOR_GPU)
	@touch .venv/$(FAISS) $@

locks: .venv/bin/python
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/python locks/lock.py

sbom: locks/sbom.txt
	$(PYTHON) -m venv .venv/sbom
	.venv/sbom/bin/python -m pip install --quiet --require-hashes -r $<
	.venv/sbom/bin/cyclonedx-py requirements locks/$(FAISS).txt --pyproject pyproject.toml --output-reproducible -o memlib-$(FAISS).cdx.json

clean:
	rm -rf memlib-*.cdx.json .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
