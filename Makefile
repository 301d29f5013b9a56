# Everything runs in .venv; nothing global is touched. Needs Python 3.11+, make and git.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: up test check format lint types contracts drill bench bench-peers bench-routing reproductions tournament test-real test-real-light test-real-pd fresh clean

up: $(STAMP)            ## router and the mock fleet of config.yaml
	$(BIN)/pointsman up

test: $(STAMP)          ## the whole test suite
	$(BIN)/pytest -q -n 2

check: format lint types contracts test

format: $(STAMP)        ## fails when a file is not formatted; `ruff format` repairs it
	$(BIN)/ruff format --check .

lint: $(STAMP)
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

contracts: $(STAMP)
	$(BIN)/lint-imports

drill: $(STAMP)         ## break a fleet of prefill and decode workers in 200 ways, in virtual time
	$(BIN)/python -m tests.drill --seeds 200

bench: $(STAMP)         ## speed and memory of our own parts
	$(BIN)/python -m benchmarks

bench-peers: $(STAMP)   ## against other routers, all in one run; split requests too
	$(BIN)/python -m benchmarks.peers

bench-routing: $(STAMP) ## where routers send requests on four mock engines, beside other routers
	$(BIN)/python -m benchmarks.routing

reproductions: $(STAMP) ## the published experiments again, in simulation; writes docs/reproductions.md
	$(BIN)/python -m router.studies.reproductions --jobs 2

tournament: $(STAMP)    ## every policy on every workload, an hour or two; writes docs/tournament.md
	$(BIN)/python -m router.studies.tournament --jobs 2

test-real: $(STAMP)     ## client probes against engines that are not ours: mlx-lm and vLLM
	$(BIN)/python -m tests.real.install
	$(BIN)/pytest -q -m real tests/real --ignore-glob='*/test_nixl_*'

test-real-light: $(STAMP) ## the same against mlx-lm alone, which is small
	$(BIN)/python -m tests.real.install mlx-lm
	$(BIN)/pytest -q -m real tests/real/test_mlx_lm.py

test-real-pd: $(STAMP)  ## a vLLM prefill/decode pair that hands KV over by NIXL, behind the router
	$(BIN)/python -m tests.real.install nixl
	$(BIN)/pytest -q -m real tests/real/test_nixl_*.py

fresh:                  ## a clone of HEAD installs, serves and stops
	tests/integration/fresh_clone.sh

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
