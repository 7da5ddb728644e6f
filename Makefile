# Three commands for a fresh machine with Python >= 3.11 and make: `make demo`, `make unit` and `make test`.
# All set-up goes to .venv, which is made anew when setup.cfg or pyproject.toml changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
UV := $(BIN)/uv
TEST_EXTRAS := test,spark,web,plot,qos,archive,mqtt,zenoh,node,docs
# two processes for a core and one more, six at most: much of the suite waits; ARGS="-n 0" for one
PYTEST := $(BIN)/python -m pytest -n $(shell $(PYTHON) -c "import os; print(1 + 2 * (os.cpu_count() or 1))") --maxprocesses 6 --dist worksteal
ENGINE ?= $(shell command -v podman || echo docker)
# what is compiled is kept: the tests start thousands of processes, and pytest rewrites what they assert
unexport PYTHONDONTWRITEBYTECODE

.PHONY: fuzz defects demo demo-node dist image unit test check lint fmt docs reference soak profile clean

demo: $(VENV)/demo.stamp
	$(BIN)/jbi demo $(ARGS)

# three nodes, two networks that lose, a relay, an island that comes back
demo-node: $(VENV)/demo.stamp
	$(BIN)/jbi demo network $(ARGS)

# a minute or two, for after each change: what needs no socket, no process and no second of a processor
unit: $(VENV)/test.stamp
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal -m unit $(ARGS)

# a few that fail run again, alone
test: $(VENV)/read.stamp
	$(PYTEST) $(ARGS) || { test $$? = 1 && $(BIN)/python tools/again.py $(ARGS); }

# everything: lint, format, types, floors, then all tests, the slow ones too
check: $(VENV)/read.stamp lint
	EXAMPLES=all JBI_LOCK_ORDER=1 $(PYTEST) -m "" $(ARGS)

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/ratchet.py
	$(BIN)/python tools/rows.py --check
	$(BIN)/python tools/words.py

fmt: $(VENV)/test.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(UV): | $(VENV)/bin/python
	$(PIP) 'uv>=0.9,<1'

# by uv, which needs a third of pip's time; by pip, where there is no uv, or it finds no index: it does not read pip.conf;
# pyspark comes as source alone, and to compress what is unpacked at once takes most of a minute
STORED := --config-settings-package 'pyspark:--build-option=--compression=stored'
install = { test -x $(UV) || $(PIP) 'uv>=0.9,<1'; } && $(UV) pip install --quiet --python $(BIN)/python $(STORED) -e '.[$(1)]' || $(PIP) --use-pep517 -e '.[$(1)]'

$(VENV)/demo.stamp: setup.cfg pyproject.toml | $(VENV)/bin/python
	$(call install,archive)
	touch $@

# what uv has built and nothing refers to any more goes: from an index that tells no revisions pyspark is a gigabyte each time
$(VENV)/test.stamp: setup.cfg pyproject.toml | $(VENV)/bin/python
	$(call install,$(TEST_EXTRAS))
	@UV_LOCK_TIMEOUT=10 $(UV) cache prune --quiet 2>/dev/null || true
	touch $@ $(VENV)/demo.stamp $(VENV)/docs.stamp

# what pytest makes of a file of tests is kept: else each of its processes does that, at the same time, a minute of two
# processors; what can't be read the tests themselves tell
$(VENV)/read.stamp: $(VENV)/test.stamp
	@find tests -name 'test_*.py' | sort | xargs -P 2 -n 260 $(BIN)/python -m pytest --collect-only -q -n 0 -p no:cacheprovider >/dev/null 2>&1 || true
	@touch $@

$(VENV)/docs.stamp: setup.cfg pyproject.toml | $(VENV)/bin/python
	$(call install,docs)
	touch $@ $(VENV)/demo.stamp

# a release in dist/: built, and tried without extras on each Python, a minute
dist: $(UV)
	$(PYTHON) tools/release.py $<

# the images of deploy/, built and run once, with podman or docker
image:
	@$(ENGINE) info >/dev/null 2>&1 || { echo "make image needs podman, or docker and its daemon"; exit 1; }
	$(ENGINE) build -f deploy/Containerfile -t jbi-pubsub .
	$(ENGINE) run --rm jbi-pubsub demo
	$(ENGINE) build -f deploy/Containerfile.node -t jbi-node .
	$(ENGINE) run --rm jbi-node --version

# the site, in build/docs; a warning is an error
docs: $(VENV)/docs.stamp
	$(BIN)/python -m sphinx -q -E -W --keep-going -b html -d build/doctrees docs build/docs
	@echo "build/docs/index.html"

# the pages that are made from the code and kept
reference: $(VENV)/test.stamp
	for page in errors losses metrics states; do $(BIN)/python docs/make_reference.py $$page > docs/$$page.new && mv docs/$$page.new docs/$$page.md || exit 1; done
	$(BIN)/python docs/make_configuration.py > docs/configuration.new && mv docs/configuration.new docs/configuration.md
	$(BIN)/python tools/rows.py

# requests that schemathesis makes of the gateway's document; make fuzz FUZZ_SECONDS=600 FUZZ_ARGS="--seed 7"
FUZZ_SECONDS ?= 20
fuzz: $(VENV)/test.stamp
	test -x build/fuzz/bin/schemathesis || $(PYTHON) -m venv build/fuzz
	build/fuzz/bin/pip install --quiet --disable-pip-version-check 'schemathesis>=4.32,<5'
	SCHEMATHESIS=build/fuzz/bin/schemathesis FUZZ_SECONDS=$(FUZZ_SECONDS) FUZZ_ARGS="$(FUZZ_ARGS)" $(BIN)/python -m pytest -s -n 0 -m slow tests/web/test_gateway_fuzz.py $(ARGS)

# defects planted in the bridge and the RTI, one at a time, and who finds each; ARGS="barrier" for those with that word
defects: $(VENV)/test.stamp
	$(BIN)/python -m tests.hla.bridge.test_defects $(ARGS)

# ten minutes of churn over real processes; make soak ARGS="--minutes 3 --seed 7"
soak: $(VENV)/test.stamp
	$(BIN)/python benchmarks/soak.py $(ARGS)

# what a delegate does with an object, function by function; ARGS="--save before.json", then ARGS="--against before.json"
profile: $(VENV)/test.stamp
	$(BIN)/python benchmarks/work.py $(ARGS)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
