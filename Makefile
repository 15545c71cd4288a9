# Two commands do everything: `make demo` and `make test`.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests start many processes, which import the library: its bytecode is kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test contract faults docs notebooks lint types bench clean

demo: $(STAMP)
	$(BIN)/pare demo

test: lint types
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not contract and not faults"  # for two cores: many tests wait for processes

contract: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/contract -m "contract or not contract"
	$(BIN)/python -m pytest -n 2 --dist worksteal tests --ignore tests/contract -m contract

# Kills, failing calls, damaged files, many workers: an hour on two cores.
faults: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/faults -m "faults or not faults"
	$(BIN)/python -m pytest -n 2 --dist worksteal tests --ignore tests/faults -m faults

# The site, in site/index.html. `make test` builds it too, and opens pages of it in Chromium.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Runs the tutorials and stores what they print: some minutes on two cores.
notebooks: $(STAMP)
	$(BIN)/python docs/tutorials/run.py

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache

types: $(STAMP)
	$(BIN)/mypy

# What a CPU can tell; the others need a GPU and say so.
bench: $(STAMP)
	$(BIN)/python benchmarks/artefact.py
	$(BIN)/python benchmarks/latency.py
	$(BIN)/python benchmarks/onnx_export.py
	$(BIN)/python benchmarks/packed_linear.py --cpu
	$(BIN)/python benchmarks/optimizer_step.py --device cpu --case even
	$(BIN)/python benchmarks/optimizer_training.py
	$(BIN)/python benchmarks/optimizer_synthetic.py

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt setuptools torch
	$(BIN)/python -m pip install --quiet --no-build-isolation --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt --upgrade --target $(VENV)/timm timm torchvision  # see tests/timm_package.py
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist demo-run runs site
