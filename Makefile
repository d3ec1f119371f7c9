# `make run` and `make test` need Python 3.11+, git and make; everything else is set up here.
# PYTHON=python3.13 (or another) uses a virtual environment of its own: .venv-3.13.
PYTHON ?= python3
VENV   := .venv$(if $(filter-out python3,$(PYTHON)),-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready-all
# two processes more than there are processors, because tests wait for others, but not more than
# memory is for; one of them has Spark
WORKERS := $(shell $(PYTHON) -c 'import os; print(min((os.cpu_count() or 1) + 2, 4))')
# a process that dies (a test took too long) is not replaced: with loadgroup the run would hang; so
# it ends, and names the test
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --max-worker-restart 0

# the variables are also for what pip builds with: the first until pip 25.2, the second since
PIP_INSTALL := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check
# prints what the project and these extras of it need
REQUIREMENTS := import sys, tomllib; conf = tomllib.load(open("pyproject.toml", "rb")); \
	needed = [conf["tool"]["hatch"]["metadata"]["hooks"]["custom"]["dependencies"]]; \
	needed += map(conf["project"]["optional-dependencies"].get, sys.argv[1].split(",")); \
	print(*(j for i in needed for j in i), sep="\n")
# what a part of the gateway is compiled from, and how
COMPILED := hatch_build.py $(wildcard eventer_bridge/packed/*.pyx eventer_bridge/packed/*.pxi)

# some images set it; each of the hundreds of processes of the tests would compile everything
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run console demo test test-slow test-without-spark test-pythons check bench bench-slow torture mutate clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 24

# what is installed for each use
$(VENV)/.ready-run: EXTRAS := demo
$(VENV)/.ready-console: EXTRAS := console,demo
$(VENV)/.ready-without-spark: EXTRAS := dev,backup,console,demo,group,otel
$(READY): EXTRAS := dev,dev-deploy,dev-spark,backup,console,demo,group,otel,spark
$(READY): USES := run console
$(VENV)/.ready-%: pyproject.toml mariner/client/pyproject.toml hatch_client.py constraints.txt $(COMPILED)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; name one with: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@# the gateway is compiled while pip brings what it needs; the byte code is compiled at the end, as
	@# pip does that on one processor, which takes as long as all the rest
	$(PIP_INSTALL) --no-compile --no-deps -e . & project=$$!; \
	$(BIN)/python -c '$(REQUIREMENTS)' $(EXTRAS) > $(VENV)/requirements.txt \
	&& $(PIP_INSTALL) --no-compile -e ./mariner/client -r $(VENV)/requirements.txt && wait $$project || { wait; exit 1; }
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # some packages have files that are no Python
	@$(BIN)/python -c 'from eventer_bridge.packed import IS_COMPILED as it; it or print("not compiled: registrations are slower; see README.md, Two commands")'
	@touch $(USES:%=$(VENV)/.ready-%) $@

setup: $(READY)  ## make the virtual environment

run: $(VENV)/.ready-run  ## run the gateway with TLS, development certificates and a durable store
	$(BIN)/mariner certs development --dir var/certs
	$(BIN)/mariner serve --conf deploy/development.yaml

console: $(VENV)/.ready-console  ## show the gateway of `make run` on a page, http://127.0.0.1:23081 (development, development)
	$(BIN)/mariner console --conf deploy/development-console.yaml

demo: $(VENV)/.ready-run  ## start a gateway, register real measurements of this machine through TLS, query them back
	$(BIN)/python deploy/demo/run.py

test: $(READY)  ## run the tests; with another Python: make test PYTHON=python3.13
	$(PYTEST)

test-slow: $(READY)  ## run the tests that take most of a minute each
	$(PYTEST) -m slow

test-without-spark: $(VENV)/.ready-without-spark
	$(PYTEST) --ignore tests/perf

test-pythons: $(READY)  ## run the tests without Spark on every other supported Python of this machine
	$(BIN)/python -m tests.pythons

check: $(READY)  ## lint, format and type check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## measure against hat-mariner-server + hat-event-server, the least a server must do, and Redis
	$(BIN)/python -m tests.perf

bench-slow: $(READY)  ## measure ten million events, Spark, RSB, relays
	$(BIN)/python -m tests.perf --slow

torture: $(READY)  ## kill -9, full disks, failing syncs, damaged files, clocks back, cut connections; random steps; fuzzing; attacks
	-$(PIP_INSTALL) --only-binary atheris -e ./mariner/client -e '.[torture]'
	$(BIN)/python -m tests.torture
	SANITIZED_INPUTS=50_000 $(PYTEST) -m slow
	EXAMPLES=200 $(BIN)/python -m pytest -q -o timeout=3600 tests/eventer_bridge/backends/test_stateful.py
	EXAMPLES=500 $(BIN)/python -m pytest -q -o timeout=3600 -m hypothesis tests/eventer_bridge tests/mariner
	SPARK_EXAMPLES=20 $(BIN)/python -m pytest -q -o timeout=3600 tests/spark/source tests/spark/reports
	DIFFERENTIAL_MESSAGES=100_000 $(BIN)/python -m pytest -q -o timeout=600 tests/mariner/wire/test_differential.py tests/eventer_bridge/eventer/test_differential.py

mutate: $(READY)  ## change the code in small ways, one at a time, and see if a test notices
	$(PIP_INSTALL) -e ./mariner/client -e '.[mutate]'
	$(BIN)/python -m tests.mutation

clean:  ## remove everything that make created
	rm -rf .venv .venv-* var dist build mutants .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f eventer_bridge/packed/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
