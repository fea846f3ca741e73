# Commands for developers and CI. Downloads and builds go to ~/.cache/gpu-charts, once.
# CLUSTER=kind|existing|local chooses the cluster; without it: existing if KUBECONFIG is set, else kind where Docker or
# Podman works, else local.
SHELL := /bin/bash
VENV := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gpu-charts/venv
PYTHON := $(VENV)/bin/python
# The oldest and the newest Kubernetes of which the charts' objects are checked
OLDEST := 1.29.6
NEWEST := 1.37.2
.DEFAULT_GOAL := help
.PHONY: upstream help try demo test test-schemas test-gang test-ipv6 test-oldest test-fast test-of test-e2e test-argocd test-flux test-lifecycle test-package attack ddp-matrix ddp-baseline launch-family wait-table plan-table gpu scale differential fuzz values-fuzz values-server bench track-matrix train-kills test-trainers lint generate verify image cluster-up cluster-down

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

try: ## The three tools on this machine in two minutes: no cluster, no image, no root
	@python3 -m hack.tryout

demo: ## Test every node, start a group, show the addresses its tasks found; leaves the cluster up
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev
	@PARTS=demo $(PYTHON) -m hack.demo

test: ## Everything: lint, unit, charts, end to end on a real Kubernetes
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev torch train browser fuzz skypilot track
	@$(PYTHON) -m hack.test

test-fast: ## Lint and the quick unit and chart tests: no cluster, no image
	@python3 -m hack.preflight
	@python3 -m hack.deps.venv dev torch train
	@$(PYTHON) -m hack.test --quick lint unit charts

test-of: ## The quick tests of FILE: a source file, a folder, a chart or a page
	@python3 -m hack.deps.venv dev torch train
	@$(PYTHON) -m hack.test_of $(FILE)

test-e2e: ## End-to-end tests only
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev
	@$(PYTHON) -m hack.test e2e

test-gang: ## Gang scheduling by Kubernetes itself, on a local cluster that has it switched on
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev
	@FEATURES=gang $(PYTHON) -m hack.test gang

test-ipv6: ## A slice of each chart on a local cluster whose nodes, pods and Services have IPv6 only
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev
	@IP_FAMILY=ipv6 $(PYTHON) -m hack.test ipv6

test-oldest: ## End-to-end tests on the oldest Kubernetes that builds, without those of its newer features
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev
	@KUBERNETES=kubernetes-oldest $(PYTHON) -m hack.test e2e

test-argocd: ## Argo CD on the cluster: health scripts, and Applications synced from a git repository
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev
	@$(PYTHON) -m hack.test argocd

test-flux: ## Flux on the cluster: HelmReleases synced from a git repository
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev
	@$(PYTHON) -m hack.test flux

test-lifecycle: ## Every example with Helm 4 and 3, and chart-testing: install, upgrade, roll back, uninstall
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev
	@$(PYTHON) -m hack.test lifecycle

test-package: ## The charts as signed packages in an OCI registry on this machine, with Helm 3 and 4
	@python3 -m hack.preflight
	@python3 -m hack.deps.venv dev
	@$(PYTHON) -m hack.test package

differential: ## jobgen compared with SkyPilot on GROUPS (5000) generated groups (SEED chooses others)
	@python3 -m hack.deps.venv dev skypilot
	@DIFFERENTIAL_GROUPS=$(or $(GROUPS),5000) DIFFERENTIAL_SEED=$(or $(SEED),run) $(PYTHON) -m pytest -q -s tests/differential

upstream: ## Verdict of jobgen on every job group in a checkout of SkyPilot (DIR)
	@python3 -m hack.deps.venv dev
	@$(PYTHON) -m hack.upstream $(DIR)

fuzz: ## Fuzz jobgen for SECONDS (60), then as long what the worker reads from other pods and programs
	@python3 -m hack.deps.venv dev fuzz
	@FUZZ_SECONDS=$(or $(SECONDS),60) $(PYTHON) -m pytest -q -s --timeout 0 -k coverage tests/fuzz

values-fuzz: ## Render SETS (3334) random sets of values and as many mutations per chart (SEED chooses others)
	@python3 -m hack.preflight
	@python3 -m hack.deps.venv dev
	@VALUES_SETS=$(or $(SETS),3334) VALUES_SEED=$(or $(SEED),1) VALUES_KUBERNETES="$(OLDEST) $(NEWEST)" $(PYTHON) -m hack.test values-fuzz

values-server: ## Random sets of values (SETS per chart, 3334) against the API server of the cluster (SEED chooses others)
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev
	@VALUES_SETS=$(or $(SETS),3334) VALUES_SEED=$(or $(SEED),1) $(PYTHON) -m hack.test values

test-schemas: ## Every scenario against the schemas of each Kubernetes since the oldest that charts admit
	@python3 -m hack.deps.venv dev
	@VALUES_KUBERNETES="$(OLDEST) 1.30.14 1.31.14 1.32.13 1.33.13 1.34.5 1.35.4 1.36.3 $(NEWEST)" $(PYTHON) -m pytest -q -n 3 tests/charts/test_charts_kubernetes_schemas.py

bench: ## jobgen against its imports and SkyPilot's loader; ddp-launch's start against torchrun's
	@python3 -m hack.deps.venv dev torch skypilot
	@$(PYTHON) -m tests.bench

scale: ## Groups of up to 1,000 ranks on nodes simulated by KWOK, compared with bare pods
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev
	@PYTHONPATH=generator/src $(PYTHON) -m pytest -q -s tests/scale

attack: ## MESSAGES (10000) hostile messages to each port, and KILLS (200) rounds of SIGKILL (SEED chooses others)
	@python3 -m hack.deps.venv dev torch
	@ATTACK_MESSAGES=$(or $(MESSAGES),10000) ATTACK_KILLS=$(or $(KILLS),200) ATTACK_SEED=$(or $(SEED),1) $(PYTHON) -m pytest -q tests/worker/test_attack.py

ddp-matrix: ## Every injected fault of a torchrun world, with processes and with pods
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev torch train
	@$(PYTHON) -m hack.test matrix

launch-family: ## RUNS (500) generated faults and as many healthy runs of ddp-launch, a tenth with torch (SEED chooses others)
	@python3 -m hack.deps.venv dev torch train
	@FAMILY_RUNS=$(or $(RUNS),500) FAMILY_SEED=$(or $(SEED),1) $(PYTHON) -m pytest -q -n 5 tests/worker/test_launch_family.py

ddp-baseline: ## The same faults and start-up times with ddp-run and with hand-written manifests
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev
	@$(PYTHON) -m tests.baseline

wait-table: ## Run what waits for a fleet or a run, and write the exit codes to docs/operate.md
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev
	@$(PYTHON) -m tests.waits $(PARTS)

plan-table: ## Run the JobGroup test plan and write its results to tests/e2e/TEST_PLAN.md
	@python3 -m hack.preflight cluster
	@python3 -m hack.deps.venv dev
	@$(PYTHON) -m hack.gen.plan_table

gpu: ## Everything that needs a GPU, in parts of 7 minutes of an H100, on a bare machine (DEVICE=cpu: dry run); continues where it ended
	@python3 -m hack.gpu --device $(or $(DEVICE),cuda) $(ARGS)

track-matrix: ## Every fault of an MLflow or Pluto server in every phase of a training: six minutes
	@python3 -m hack.deps.venv dev torch train track
	@OMP_NUM_THREADS=1 PYTHONPATH=generator/src $(dir $(VENV))venv-track/bin/python -m pytest -q -n 2 tests/tracking

train-kills: ## RUNS (60) trainings of each program, world and signal, cut off at a random step or in a save, and resumed
	@python3 -m hack.deps.venv dev torch train
	@CUTS=$(or $(RUNS),60) CRASH_SAVES=$(or $(RUNS),60) $(PYTHON) -m pytest -q -n 2 --timeout 0 -k "cut_off or crash" tests/worker/test_train_programs.py tests/worker/test_train_crash.py

test-trainers: ## Other training libraries under ddp-launch: stop and resume, a crash, a hang
	@python3 -m hack.deps.venv dev torch train trainers
	@$(PYTHON) -m pytest -q -m trainers tests/worker/test_train_libraries.py

lint: ## Lint only
	@python3 -m hack.preflight
	@python3 -m hack.deps.venv dev
	@$(PYTHON) -m hack.test lint

generate: ## Write every generated file: schemas, shared templates, references in docs/
	@python3 -m hack.deps.venv dev
	@$(PYTHON) -m hack.gen.generate

verify: ## Fail if a generated file is out of date
	@python3 -m hack.deps.venv dev
	@$(PYTHON) -m hack.gen.generate --check

image: ## Build the worker image on the CPU base as an archive in the cache (root, Debian, no Docker)
	@CLUSTER=local python3 -m hack.preflight cluster
	@python3 -c 'from hack.deps import debian, images; debian.install(); print(images.worker())'

cluster-up: ## Start the kind or local cluster (NODES=2; local: NODE_CPUS=64, NODE_MEMORY=128)
	@python3 -m hack.preflight cluster
	@python3 -m hack.test_cluster up

cluster-down: ## Stop that cluster and remove everything that it created
	@python3 -m hack.test_cluster down
