# kvctl: every target sets up what it needs in .venv of this folder.
VENV ?= .venv
MINUTES ?= 60
PY := $(VENV)/bin/python
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-real bench-sim bench-decide bench-proxy bench-kv-cost bench-aa bench-accept compare agreement results soak check-pages lint format clean

help:
	@echo 'make demo       run the main job on a simulated fleet: kv against random, about three minutes with set-up'
	@echo 'make test       run the tests'
	@echo 'make test-real  the same promises on a real vLLM (CPU): installs it first, 4 GB, about 25 minutes'
	@echo 'make bench-sim  how far a live simulated engine distorts its own timing'
	@echo 'make bench-decide  how long a routing decision takes, beside Dynamo (installed into .peers-decide)'
	@echo 'make soak       an hour of mixed traffic before engines that are killed and hung (MINUTES=3 for less)'
	@echo 'make bench-proxy  the proxy beside vllm-router, SMG and Envoy: installs them first (400 MB), 12 minutes'
	@echo 'make check-pages  write docs/checks, a page a check of kvctl validate'
	@echo 'make bench-aa   40 runs of kvctl bench on equal arms, and one on unequal ones: what it claims (40 minutes)'
	@echo 'make bench-accept  no-sharing, overload, hot-spot: what kvctl bench has to say of them'
	@echo 'make bench-kv-cost  kv counting in time against blocks, engines alike and mixed'
	@echo 'make compare    kvctl beside vllm-router, SMG and Dynamo on simulated engines: installs them first (1 GB), 6 minutes'
	@echo 'make agreement  kvctl bench beside aiperf and vllm bench serve on one schedule (1.2 GB and make test-real), 10 minutes'
	@echo 'make results TRACE=FILE  the Mooncake conversation trace on 8 engines, into docs/results.md, 15 minutes'
	@echo 'make lint       ruff and mypy'
	@echo 'make clean      remove what the targets made'

$(VENV)/.ready: pyproject.toml scripts/setup.sh
	bash scripts/setup.sh $(VENV)
	touch $@

$(VENV)/.ready-test: $(VENV)/.ready
	bash scripts/setup.sh $(VENV) test
	touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	bash scripts/setup.sh $(VENV) dev
	touch $@

demo: $(VENV)/.ready
	@$(VENV)/bin/kvctl bench --modes kv,random --out demo-out || { code=$$?; \
	  [ $$code -eq 4 ] && echo 'demo: no verdict this time, the reason stands above; try again on a quiet machine' >&2; \
	  exit $$code; }

test: $(VENV)/.ready-test
	$(PY) -m pytest

test-real: $(VENV)/.ready-test
	bash tests/real/setup.sh
	KVCTL_REAL=1 $(PY) -m pytest tests/real -p no:cacheprovider

bench-sim: $(VENV)/.ready
	$(PY) scripts/bench_sim.py

bench-decide: $(VENV)/.ready
	bash scripts/bench_decide.sh $(PY) --write docs/performance.md

soak: $(VENV)/.ready
	$(PY) scripts/soak.py --minutes $(MINUTES)

bench-proxy: $(VENV)/.ready
	bash scripts/bench_proxy.sh $(PY) --out docs/performance.md

check-pages: $(VENV)/.ready-test
	$(PY) scripts/check_pages.py --examples

bench-aa: $(VENV)/.ready
	$(PY) scripts/bench_aa.py

bench-accept: $(VENV)/.ready
	$(PY) scripts/bench_accept.py

bench-kv-cost: $(VENV)/.ready
	bash scripts/bench_kv_cost.sh $(PY) bench-kv-cost-out

compare: $(VENV)/.ready
	bash scripts/compare_peers.sh $(PY) --write docs/compare.md $(OPTIONS)

agreement: $(VENV)/.ready
	bash scripts/agreement.sh $(PY) --write docs/measuring.md $(OPTIONS)

results: $(VENV)/.ready
	bash scripts/results.sh $(PY) "$(TRACE)" $(OPTIONS)

lint: $(VENV)/.ready-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(VENV)/.ready-dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf $(VENV) .peers .peers-dynamo .peers-aiperf compare-out results-out demo-out bench-aa-out bench-kv-cost-out build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
