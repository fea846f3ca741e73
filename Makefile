# Everything a person or CI runs. Downloads and builds go to ~/.cache/gpu-charts, once.
SHELL := /bin/bash
VENV := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gpu-charts/venv
PYTHON := $(VENV)/bin/python
.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-e2e ddp-matrix ddp-baseline plan-table scale differential fuzz bench train-bench lint generate verify image cluster-up cluster-down

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Accept every node, start a group, show what its tasks found; leaves the cluster up
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev
	@$(PYTHON) -m hack.demo

test: ## Everything: lint, unit, charts, end to end on a real Kubernetes
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev torch train fuzz skypilot track
	@$(PYTHON) -m hack.test

test-fast: ## Lint, and the quick ones of the unit and chart tests: no cluster, no image
	@python3 -m hack.preflight
	@python3 -m hack.deps.venv dev torch train
	@$(PYTHON) -m hack.test --quick lint unit charts

test-e2e: ## End-to-end tests only
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev
	@$(PYTHON) -m hack.test e2e

differential: ## jobgen against SkyPilot on the seeds and GROUPS (5000) generated groups (others with SEED)
	@python3 -m hack.deps.venv dev skypilot
	@DIFFERENTIAL_GROUPS=$(or $(GROUPS),5000) DIFFERENTIAL_SEED=$(or $(SEED),run) $(PYTHON) -m pytest -q -s tests/differential

fuzz: ## Fuzz jobgen for SECONDS (60)
	@python3 -m hack.deps.venv dev fuzz
	@PYTHONPATH=generator/src $(PYTHON) -m tests.fuzz $(or $(SECONDS),60)

bench: ## How fast jobgen is, beside its imports and SkyPilot's loader
	@python3 -m hack.deps.venv dev skypilot
	@$(PYTHON) -m tests.bench

scale: ## Groups of up to 1,000 ranks on nodes that KWOK makes up; prints times beside those of bare pods
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev
	@PYTHONPATH=generator/src $(PYTHON) -m pytest -q -s tests/scale

ddp-matrix: ## Every way to break a torchrun world, with processes and with pods
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev torch train
	@$(PYTHON) -m hack.test matrix

ddp-baseline: ## ddp-run beside manifests that people write by hand: start-up times, and the same faults
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev
	@$(PYTHON) -m tests.baseline

plan-table: ## Run the JobGroup test plan and write its results into README.md
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev
	@$(PYTHON) -m hack.gen.plan_table

train-bench: ## Tokens a second and memory of the training, beside Hugging Face's Trainer and accelerate's loop
	@python3 -m hack.deps.venv dev torch train
	@PYTHONPATH=worker/src $(PYTHON) -m tests.bench.train

lint: ## Lint only
	@python3 -m hack.preflight
	@python3 -m hack.deps.venv dev
	@$(PYTHON) -m hack.test lint

generate: ## Write what is derived: charts' schemas, shared template, jobgen's schemas
	@python3 -m hack.deps.venv dev
	@$(PYTHON) -m hack.gen.generate

verify: ## Fail if a generated file is out of date
	@python3 -m hack.deps.venv dev
	@$(PYTHON) -m hack.gen.generate --check

image: ## Build the worker image on the CPU base, as an archive in the cache
	@python3 -m hack.preflight cluster
	@python3 -c 'from hack.deps import debian, images; debian.install(); print(images.worker())'

cluster-up: ## Start the local cluster (NODES=2, NODE_CPUS=64, NODE_MEMORY=128)
	@python3 -m hack.preflight cluster
	@python3 -m hack.local_cluster up

cluster-down: ## Stop it and remove everything it made
	@python3 -m hack.local_cluster down
