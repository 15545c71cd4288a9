# Two commands do everything: `make demo` and `make test`.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test contract lint types bench clean

demo: $(STAMP)
	$(BIN)/pare demo

test: lint types
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not contract"

contract: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/contract -m "contract or not contract"

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

bench: $(STAMP)
	for file in benchmarks/*.py; do $(BIN)/python $$file || exit 1; done

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt setuptools torch
	$(BIN)/python -m pip install --quiet --no-build-isolation --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist demo-run runs
