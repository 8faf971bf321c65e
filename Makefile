# GPULoom: `make run` and `make test` set up everything they need themselves.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# Where it is set, every test process would rewrite all assertions anew.
unexport PYTHONDONTWRITEBYTECODE
# Every target is a name, not a file.
.PHONY: $(shell grep -hoE '^[a-z-]+:' $(firstword $(MAKEFILE_LIST)) | tr -d :)

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' | awk -F'|' '{printf "  make %-14s %s\n", $$1, $$2}'

run: $(VENV)/.run-ready ## the whole mesh on simulated GPUs; ARGS="--nodes 100 --seed 7 --duration 60s --headless"
	@$(BIN)/gpuloom run $(ARGS)

test: $(VENV)/.dev-ready ## unit, contract, mesh and scenario tests; needs only Python
	@$(BIN)/pytest -n 2 --dist worksteal -m "not real" -q $(ARGS)

test-real: $(VENV)/.dev-ready ## tests that need more than Python; says which parts ran
	@tests/real.sh "$(BIN)" $(ARGS)

rights: $(VENV)/.dev-ready ## test-real with nothing left out; fails on a right of a service that no test used, too
	@GPULOOM_REQUIRE_REAL=1 GPULOOM_RIGHTS_FULL=1 tests/real.sh "$(BIN)" $(ARGS)

test-soak: $(VENV)/.dev-ready ## the cluster tests at full length and size; GPULOOM_CLUSTER_NODES and GPULOOM_CLUSTER_PODS change it
	@GPULOOM_CLUSTER_SOAK=1 $(BIN)/pytest -q -s -m real tests/cluster tests/browser/test_scale.py $(ARGS)

kube-assets: $(VENV)/.dev-ready ## build pinned Kubernetes programs for the cluster tests from Go modules (once)
	@$(BIN)/python -m tests.cluster.assets.build $(ARGS)

bench-cluster: $(VENV)/.dev-ready ## pods/s of a bare kube-scheduler, a do-nothing extender and ours, in one run
	@$(BIN)/python -m tests.bench.cluster $(ARGS)

bench-agent: $(VENV)/.dev-ready ## cost of a sample and of a scrape at 8 GPUs x 7 slices, memory and CPU of an agent; needs a C compiler
	@$(BIN)/python -m tests.bench.agent $(ARGS)

bench-discovery: $(VENV)/.dev-ready ## discovery with 1,000 simulated agents: time to synced, change to reader, memory, CPU
	@$(BIN)/python -m tests.bench.discovery_scale $(ARGS)

bench-extender: $(VENV)/.dev-ready ## the extender with 5,000 nodes and 40,000 pods: filter and prioritize as waited for, memory
	@$(BIN)/python -m tests.bench.extender_scale $(ARGS)

bench-optimizer: $(VENV)/.dev-ready ## the optimizer's class, need and hint against simple rivals, on workloads held back and by time
	@$(BIN)/python -m tests.bench.optimizer $(ARGS)

bench-webhook: $(VENV)/.dev-ready ## the webhook at 200 reviews/s beside one that does nothing, in one run
	@$(BIN)/python -m tests.bench.webhook $(ARGS)

bench-verbs: $(VENV)/.dev-ready ## filter and prioritize with 5,000 nodes in one process, without any network
	@$(BIN)/python -m tests.bench.verbs $(ARGS)

bench-gangs: $(VENV)/.dev-ready ## planning a gang of 256 and a preemption with 1,000 nodes, and filter meanwhile
	@$(BIN)/python -m tests.bench.gangs $(ARGS)

bench-cost: $(VENV)/.dev-ready ## the cost engine's store: ingest against bare COPY, a month from sums against raw windows; ARGS="--agents 1000" for memory
	@$(BIN)/python -m tests.bench.cost $(ARGS)

bench-autoscaler: $(VENV)/.dev-ready ## cost of scale-up against a MILP bound, cluster-autoscaler's and Karpenter's rules; forecasts; DATA=<folder>
	@$(BIN)/python -m tests.bench.autoscaler $(DATA) $(ARGS)

# As bench-autoscaler, it needs a folder with recorded traces.
bench-inference: $(VENV)/.dev-ready ## replicas under recorded arrivals: ratio, adaptive, HPAs, a queue scaler, foresight; DATA=<folder>
	@$(BIN)/python -m tests.bench.inference $(or $(DATA),$(GPULOOM_DATA)) $(ARGS)

sim-week: $(VENV)/.dev-ready ## a week of autoscaling in simulated time, with and without each feature: table and picture
	@$(BIN)/python -m tests.bench.autoscaler.week $(ARGS)

bench-placement: $(VENV)/.dev-ready ## how full the openb cluster gets with ours, FGD and BestFit, also on families of lists; DATA=<folder of openb csv variants>
	@$(BIN)/python -m tests.bench.placement $(DATA) $(ARGS)

bench-mig: $(VENV)/.dev-ready ## slices of random demand that find a place: ours, first-fit, static layouts, the clairvoyant optimum
	@$(BIN)/python -m tests.bench.mig $(ARGS)

lint: $(VENV)/.dev-ready proto-check docs ## ruff, mypy --strict, import contracts, buf, hadolint, the compose file, the documentation
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@cd protos && ../$(BIN)/buf lint
	@protos/breaking.sh "$(BIN)"
	@$(BIN)/hadolint deploy/docker/Dockerfile
	@if docker compose version >/dev/null 2>&1; then docker compose --profile grafana config --quiet; fi

images: $(VENV)/.dev-ready ## build the container images of all services; needs Docker
	@$(BIN)/python -m deploy.docker.build $(ARGS)

sbom: $(VENV)/.dev-ready ## write what is in each image to build/sbom (CycloneDX)
	@$(BIN)/python -m deploy.docker.sbom

manifests: $(VENV)/.dev-ready ## write what is generated of deploy/charts, and deploy/manifests from them; builds helm (once)
	@HELM="$$($(BIN)/python -m tests.cluster.assets.build helm)/helm" $(BIN)/python deploy/manifests/generate.py

format: $(VENV)/.dev-ready ## put the code in its format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

reference: $(VENV)/.dev-ready ## write docs/custom-resources.md from deploy/crds, and docs/reference from the code
	@$(BIN)/python docs/generate_custom_resources.py
	@$(BIN)/python docs/generate_reference.py
	@$(BIN)/python docs/generate_runbooks.py

docs: $(VENV)/.dev-ready ## build the documentation as pages, strictly, into build/docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/docs

dashboards: $(VENV)/.dev-ready ## write deploy/monitoring/dashboards from their definitions
	@$(BIN)/python deploy/monitoring/generate.py

proto: $(VENV)/.dev-ready ## generate the stubs from protos/
	@PATH="$(abspath $(BIN)):$$PATH" protos/generate.sh .

proto-check: $(VENV)/.dev-ready ## fail if the committed stubs are not what protos/ gives
	@PATH="$(abspath $(BIN)):$$PATH" protos/generate.sh --check

# Replicas of two versions talk to each other during an update.
PROTO_BASE ?= $(shell git describe --tags --match 'v*' --abbrev=0 2>/dev/null || git rev-parse --verify --quiet HEAD~1)
proto-breaking: $(VENV)/.dev-ready ## fail if protos/ break those of the last release, or of the last commit before there is one
	@test -z "$(PROTO_BASE)" || (cd protos && ../$(BIN)/buf breaking --against "../.git#ref=$(PROTO_BASE),subdir=protos")

constraints: ## pin today's newest versions into constraints.txt
	@rm -rf .cache/constraints && $(PYTHON) -m venv .cache/constraints
	@.cache/constraints/bin/pip install --quiet --upgrade pip
	@.cache/constraints/bin/pip install --quiet -e '.[dev]'
	@{ echo "# Exact versions of everything; make constraints renews them."; .cache/constraints/bin/pip freeze --exclude-editable; } > constraints.txt

clean: ## remove what make made here
	@rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build run *.egg-info

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "GPULoom needs Python 3.11 or newer; this is $$($(PYTHON) --version). Set PYTHON=…"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run-ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "setting up $(VENV) …"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[sim]'
	@touch $@

$(VENV)/.dev-ready: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "setting up $(VENV) with development tools …"
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.run-ready
