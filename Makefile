# Each target makes what it needs, in .venv at the root. `make help` lists them.
# Your python3 where it is one of those supported, else the newest found, or what is named: make PYTHON=/path/to/one
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for found in python3 python3.13 python3.12 python3.11; do \
	$$found -c 'import venv, ensurepip; $(SUPPORTED)' 2>/dev/null \
	&& { echo $$found; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Half of what the tests take is waiting: more processes than cores. A file goes to one of them.
SIDE_BY_SIDE := --numprocesses 5 --dist loadfile --no-loadscope-reorder
SKIPPED := reports/tests/skipped.json
CHECKED := reports/tests/checked.txt
# Files that claim speeds; of the others nothing need be read to run those.
TIMED = $(shell grep -rl --include='test_*.py' 'mark\.timing' tests)
PYTEST = TESTS_SKIPPED=$(SKIPPED) $(BIN)/python -m pytest

# Where an environment forbids it, each process of the suite would compile all of its modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: lint audit dist pythons release site help demo secrets stack test test-all test-thorough test-random check reproduce bench mutants mutants-sample coverage lock chaos explore explore-teeth fuzz promises soak clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 15

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo 'no Python 3.11, 3.12 or 3.13 with venv found: make PYTHON=/path/to/one'; exit 1; }
	@$(PYTHON) -c '$(SUPPORTED)' || { echo '$(PYTHON) is not Python 3.11, 3.12 or 3.13: make PYTHON=/path/to/one'; exit 1; }
	@half=; test -e $(VENV) || half=$(VENV); $(PYTHON) -m venv $(VENV) || { rm -rf $$half; exit 1; }

$(VENV)/.demo: $(BIN)/python pyproject.toml client/pyproject.toml requirements.lock
	$(PIP) install -c requirements.lock -e ./client -e '.[cpu,demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) install -c requirements.lock -e ./client -e '.[cpu,demo,langid,faust,grpc,otel,dev]'
	@touch $@

$(VENV)/.mutants: $(VENV)/.dev
	$(PIP) install -c requirements.lock -e ./client -e '.[mutants]'
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(PIP) install -c requirements.lock -e ./client -e '.[docs]'
	@touch $@

demo: $(VENV)/.demo ## the main job on the embedded broker: build models, replay a trace, report in reports/demo/
	$(BIN)/sluice demo

check: lint audit ## lint, types, import rules, known weaknesses of dependencies

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases bench
	$(BIN)/mypy $(wildcard examples/*.py)
	$(BIN)/lint-imports

audit: $(VENV)/.dev
	$(BIN)/python .ci/audit.py

# Tests side by side, and meanwhile what is checked without running anything, which is told after them.
define SUITE
	@rm -f $(SKIPPED)
	@mkdir -p $(dir $(CHECKED)); $(MAKE) --no-print-directory check > $(CHECKED) 2>&1 & checked=$$!; \
		$(PYTEST) $(SIDE_BY_SIDE) $(1); held=$$?; \
		wait $$checked; right=$$?; cat $(CHECKED); exit $$((held + right))
endef

test: $(VENV)/.dev ## everything that must hold
	$(call SUITE,-m "not timing and not thorough")
	$(PYTEST) -m "timing and not thorough" $(TIMED) --begin-anew

test-all: $(VENV)/.dev ## with what takes minutes, and with Apache Kafka wherever a broker can be either
	$(call SUITE,-m "not timing" --hypothesis-profile=anew --numprocesses 6)
	$(PYTEST) -m timing $(TIMED) --begin-anew

test-thorough: $(VENV)/.dev ## what make test leaves to test-all, but for claims of speeds; ONLY=tests/simulation
	$(PYTEST) $(SIDE_BY_SIDE) -m "thorough and not timing" --begin-anew $(ONLY)

test-random: check ## three times what make test runs side by side, in random order; SEEDS="1 2 3"
	for seed in $(or $(SEEDS),1 2 3); do \
		$(PYTEST) $(SIDE_BY_SIDE) -m "not timing and not thorough" --hypothesis-profile=anew \
			--random-order-seed $$seed || exit 1; done

test-kafka: $(VENV)/.dev ## what every broker must do, on another Apache Kafka: VERSION=4.4.0
	TEST_KAFKA=$(or $(VERSION),4.4.0) SLUICE_REQUIRE_KAFKA=1 $(PYTEST) -m "kafka and not timing" tests/contract

reproduce: $(VENV)/.dev ## figures of the papers again, FIGURE=proteus-4 (or a paper, or all), ARGS=--quick; into reports/reproduce/
	$(BIN)/python -m reproduce $(or $(FIGURE),all) $(ARGS)

bench: $(VENV)/.dev ## benchmarks side by side, into reports/bench/
	@failed=; for file in bench/*.py bench/*/*.py; do \
		echo "== $$file"; $(BIN)/python $$file || failed="$$failed $$file"; done; \
		test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

chaos: $(VENV)/.dev ## faults on brokers of its own, SEEDS=20 each, CELLS=a,b or all; report in reports/chaos/
	$(BIN)/python -m tests.chaos.run --seeds $(or $(SEEDS),20) --cells "$(CELLS)" --parallel $(or $(PARALLEL),2) \
		--rate $(or $(RATE),360) $(if $(CELLS)$(SEEDS),,--docs docs/reports/chaos.md)

dist: $(VENV)/.dev ## the wheels of the server and of the client, into dist/
	rm -rf dist
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist . ./client
	@ls dist

pythons: dist ## the wheels under test on each supported Python that is found; a smoke, or TESTS=tests
	TESTS="$(TESTS)" .ci/pythons

release: check dist ## the whole suite on all supported Pythons, then the tag and its notes (CONTRIBUTING.md)
	$(BIN)/python .ci/release.py
	ALL=1 TESTS=tests .ci/pythons
	$(BIN)/python .ci/release.py --tag

site: $(VENV)/.docs ## the documents as a site, every link checked, into build/site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

secrets: ## make what compose hands to its services, once: a token and a password, in compose/secrets/
	sh compose/make-secrets.sh

stack: $(VENV)/.dev ## the compose stack on the engine that docker info finds, from nothing to nothing, with SIGKILLs under load
	$(BIN)/python -m tests.stack.run

explore: $(VENV)/.dev ## the live stages under virtual time, faults at any await: SEEDS=10000; into reports/explore/
	$(BIN)/python -m tests.explore.run --seeds $(or $(SEEDS),10000) --parallel $(or $(PARALLEL),2)

explore-teeth: $(VENV)/.dev ## that exploring finds the faults we once had, put back one by one; docs/reports/explore.md
	$(BIN)/python -m tests.explore.teeth --parallel $(or $(PARALLEL),2) --docs docs/reports/explore.md

promises: $(VENV)/.dev ## a million strict queries at 80 to 100 % of their announced bound, simulated; docs/reports/promises.md
	$(BIN)/python -m tests.simulation.promises.campaign --parallel $(or $(PARALLEL),2) --docs docs/reports/promises.md

soak: $(VENV)/.dev ## an hour's traffic of a million queries in a quarter of it, memory watched; into reports/bench/
	$(BIN)/python bench/soak.py --queries 1000000 --speed 4

fuzz: $(VENV)/.dev ## every decoder, by inputs that reach new lines, SECONDS=60 or RUNS=200000 SEED=7; into reports/fuzz/
	PYTHONHASHSEED=0 $(BIN)/python -m tests.property.fuzz.run --seconds $(or $(SECONDS),60) $(if $(RUNS),--runs $(RUNS)) $(if $(SEED),--seed $(SEED))

mutants: $(VENV)/.mutants ## changes of the pure code that no fast test notices, N=60 SEED=7 FILES=…; into reports/mutants/
	$(BIN)/python -m tests.mutants.run --n $(or $(N),60) --seed $(or $(SEED),7) $(if $(FILES),--files $(FILES))

mutants-sample: $(VENV)/.mutants ## a fixed sample in a minute or two; fails where fewer than 3 of 4 are noticed
	$(BIN)/python -m tests.mutants.run --n 24 --seed 11 --files policies/promises/*.py policies/placement/*.py \
		--tests tests/unit/policies tests/property/policies --out reports/mutants/sample --at-least 0.75

PURE := policies planner simulator sluice/audit
coverage: export COVERAGE_FILE := reports/coverage/covered
coverage: $(VENV)/.mutants ## what fast tests run of the pure code, statements and branches; below 90 % of a folder it fails
	@mkdir -p $(dir $(COVERAGE_FILE))
	$(PYTEST) -q --numprocesses 2 --dist loadfile -m "not timing and not thorough" $(PURE:%=--cov=%) --cov-branch --cov-report= \
		tests/unit tests/property tests/simulation
	@for room in $(PURE); do \
		$(BIN)/coverage report --include="$$room/*" --skip-covered --sort=cover --precision=1 --fail-under=90 || exit 1; done

lock: $(VENV)/.dev ## pin all dependencies again, one version of each for every Python
	$(PIP) install uv
	$(BIN)/uv pip compile --quiet --universal --fork-strategy fewest --all-extras --python-version 3.11 --no-header \
		--output-file requirements.lock pyproject.toml

clean: ## remove what was made here
	rm -rf $(VENV) build dist reports runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
