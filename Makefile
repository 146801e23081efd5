# One command each: `make demo`, `make test`, `make check`. The install is skipped when nothing changed.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip install --quiet --constraint constraints.txt
INPUTS := pyproject.toml constraints.txt

export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false

# The hosts' versions at both ends: environments of their own, and the tests that stand between us and the hosts.
MIN_PYTHON ?= python3.11
MAX_PYTHON ?= python3.13
HOSTS := tests/integrations/accelerate tests/integrations/lightning tests/integrations/megatron \
         tests/integrations/test_fsdp.py tests/integrations/test_windows.py
HOST_EXTRAS := transformers,lightning,accelerate,megatron,tensorboard
HOST_TOOLS := pytest pytest-timeout pytest-xdist hypothesis datasets jsonargparse[signatures] matplotlib wandb
FUZZ_SECONDS ?= 60
PEERS_SECONDS ?= 3600

.PHONY: demo test recount test-min test-max stacks test-transformers peers soak fuzz check docs format bench pictures clean

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.demo: $(INPUTS) | $(PY)
	@echo "Installing into $(VENV), which takes some minutes ..."
	@$(PY) -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[transformers,tensorboard]'
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
# Not CI's: PyTorch's oldest supported release comes with some gigabytes of CUDA. Old releases warn of what they use.
$(VENV)-%/.hosts: pyproject.toml constraints-%.txt
	$($(shell echo $* | tr a-z A-Z)_PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/pip install --quiet --constraint constraints-$*.txt --editable '.[$(HOST_EXTRAS)]' $(HOST_TOOLS)
	@touch $@

test-min test-max: test-%: $(VENV)-%/.hosts
	OMP_NUM_THREADS=1 TORCH_CUDA_ARCH_LIST=8.0 $(VENV)-$*/bin/python -m pytest --numprocesses 2 --dist loadfile \
	    --override-ini filterwarnings=default $(or $(ARGS),$(HOSTS))

# What people type, counted without the package and under `areal-callbacks run`: environments of their own, some
# gigabytes, e.g. `make stacks ARGS='--only trl'`. With --write the table of results is renewed, row by row.
stacks: $(VENV)/.test
	$(PY) tests/stacks/run.py --environments $(VENV)-stacks $(ARGS)

# The callback of the Hugging Face Trainer under another release, e.g. `make test-transformers VERSION=5.3.0`.
$(VENV)-transformers-%/.made: pyproject.toml
	$(PYTHON) -m venv $(VENV)-transformers-$*
	$(VENV)-transformers-$*/bin/pip install --quiet torch==2.13.0 transformers==$* accelerate
	$(VENV)-transformers-$*/bin/pip install --quiet --editable . pytest pytest-timeout hypothesis tensorboard
	@touch $@

test-transformers: $(VENV)-transformers-$(VERSION)/.made
	OMP_NUM_THREADS=1 $(VENV)-transformers-$(VERSION)/bin/python -m pytest --override-ini filterwarnings=default \
	    $(or $(ARGS),$(addprefix tests/integrations/transformers/test_,transformers.py releases.py packed_padding.py))

# The hosts' own tests, plain and with our callback in every trainer. PEERS: a folder with checkouts of others in it.
peers: $(VENV)/.test
	$(PY) tests/peers/fetch_accelerate.py .peers
	test -d .peers/lib || $(PIP) --target .peers/lib --no-deps parameterized six triton
	nice $(PY) tests/peers/run.py --accelerate .peers/accelerate $(if $(PEERS),--peers $(PEERS)) \
	    --seconds $(PEERS_SECONDS) $(ARGS)

# What only shows in long runs: random signals, very many steps, short trainings and keys; ARGS='steps --scale 0.1' for less.
soak: $(VENV)/.test
	OMP_NUM_THREADS=1 PYTHONPATH=tests nice $(PY) -m soak.run --result tests/soak/results.txt $(ARGS)

# Coverage-guided, without an end of their own: seconds for each target.
fuzz: $(VENV)/.test
	$(PIP) atheris
	for target in reader yaml json redaction; do \
	    $(PY) tests/fuzz/run.py $$target -max_total_time=$(FUZZ_SECONDS) -max_len=4096 $(ARGS) || exit 1; done

check: $(VENV)/.test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(MAKE) --no-print-directory docs

# The site, in build/site; a warning is an error.
docs: $(VENV)/.test
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet

format: $(VENV)/.test
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# Of a simulated run that is sick in known ways, into docs/pictures.
pictures: $(VENV)/.test
	PYTHONPATH=tests $(PY) -m support.draw_pictures docs/pictures

# An environment of its own: the peers beside which we measure. AReaL's tracker is read out of its wheel, alone.
BENCH := $(VENV)-bench

$(BENCH)/.bench: pyproject.toml constraints.txt
	@echo "Installing into $(BENCH), which takes some minutes ..."
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip install --quiet --constraint constraints.txt --editable '.[trl,lightning]' torchmetrics datasets \
	    selenium pytest pillow
	$(BENCH)/bin/pip download --quiet --no-deps --dest $(BENCH) areal==1.0.4
	@touch $@

# Writes the generated part of benchmarks/results.md, e.g. `make bench ARGS="export hooks"` for some of it.
bench: $(BENCH)/.bench
	OMP_NUM_THREADS=1 $(BENCH)/bin/python benchmarks/make_results.py $(ARGS)

clean:
	rm -rf $(VENV) $(VENV)-min $(VENV)-max $(VENV)-bench $(VENV)-stacks-* $(VENV)-transformers-* .peers build dist *.egg-info demo_output
