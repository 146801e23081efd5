# One command each: `make demo`, `make test`, `make check`. The install is skipped when nothing changed.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip install --quiet --constraint constraints.txt
INPUTS := pyproject.toml constraints.txt

export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: demo test recount check format bench clean

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.demo: $(INPUTS) | $(PY)
	@echo "Installing into $(VENV), which takes some minutes ..."
	$(PIP) --editable '.[transformers,tensorboard]'
	@touch $@

$(VENV)/.test: $(INPUTS) | $(PY)
	@echo "Installing into $(VENV), which takes some minutes ..."
	$(PIP) --editable '.[all,test]'
	@touch $@

demo: $(VENV)/.demo
	$(VENV)/bin/areal-callbacks demo $(ARGS)

test: $(VENV)/.test
	@.ci/install-browser
	OMP_NUM_THREADS=1 $(PY) -m pytest --numprocesses 2 --dist loadfile $(ARGS)

# So many trainings that hypothesis puts together against the recount, e.g. `make recount ARGS=2000`.
recount: $(VENV)/.test
	OMP_NUM_THREADS=1 RECOUNT_EXAMPLES=$(or $(ARGS),200) $(PY) -m pytest -s tests/recount/test_generated.py

check: $(VENV)/.test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(VENV)/.test
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(VENV)/.test
	for script in benchmarks/bench_*.py; do $(PY) $$script || exit 1; done

clean:
	rm -rf $(VENV) build dist *.egg-info demo_output
