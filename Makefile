# The two commands: `make lab` and `make test`. Everything else is a part of them.
.DEFAULT_GOAL := help
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: help venv dev lab lab-down test changed lint unit integration security molecule build check publication docs sanity matrix chaos upgrade release

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

lab: ## Build a proven three-node cluster on this machine
	@lab/bootstrap venv engine
	@lab/lab up

lab-down: ## Remove the lab and nothing else
	@lab/bootstrap venv engine
	@lab/lab down

venv: ## Make .venv with Ansible and this collection
	@lab/bootstrap venv

dev: ## Make .venv with what the tests need, and start the container engine
	@lab/bootstrap dev engine

test: ## Run every test
	@lab/bootstrap dev engine
	@tests/run

changed: ## Run the unit tests and scenarios that the files changed since origin/main can affect (BASE=other)
	@lab/bootstrap dev engine
	@.venv/bin/python tests/changed.py $(BASE)

lint: ## Check formatting and style
	@lab/bootstrap dev
	@tests/run lint

unit: ## Run the tests that need no hosts
	@lab/bootstrap dev
	@tests/run unit

integration: ## Run the tests in network namespaces of this machine
	@lab/bootstrap dev engine
	@tests/run integration

security: ## Run the attacks that need no hosts (SCENARIO=default make molecule: those on hosts)
	@lab/bootstrap dev
	@tests/run security

molecule: ## Run the scenarios on real hosts (SCENARIO=name for one)
	@lab/bootstrap dev engine
	@tests/run molecule

chaos: ## Kill operations everywhere and run them again (hours; CHAOS="--count 20 --seed 7" for less; PART=train: training runs, PART=programs: those of other programs, PART=session: sessions)
	@lab/bootstrap dev engine
	@.venv/bin/python tests/chaos/$(or $(PART),chaos).py $(or $(CHAOS),$(if $(PART),$(if $(filter train,$(PART)),--full),--all))

upgrade: ## Upgrade a cluster in use that an older commit has built, and compare it with a new one (FROM=commit)
	@lab/bootstrap dev engine
	@.venv/bin/python tests/upgrade/upgrade.py $(FROM)

check: ## Run all gates that need no hosts: what to run before each commit
	@lab/bootstrap dev
	@tests/run lint unit publication sanity

publication: ## Build and try what is published: archive, AWX, guides, site, changelog
	@lab/bootstrap dev
	@tests/run publication

docs: ## Build the site of the guides and the reference
	@lab/bootstrap dev
	@docs/build

sanity: ## Run ansible-test sanity but for its linters (CORES="2.18 2.21" or all: all of it, with these versions of ansible-core)
	@lab/bootstrap dev
	@tests/matrix sanity $(CORES)

matrix: ## Run all of sanity and the unit tests with every ansible-core and Python that we support (CORES="2.18 2.21" for some)
	@lab/bootstrap dev
	@tests/matrix sanity $(or $(CORES),all)
	@tests/matrix unit $(or $(CORES),all)
	@tests/matrix importer

build: ## Build the archive of the collection
	@lab/bootstrap venv
	@ansible-galaxy collection build --force

release: ## Check that this commit has all that a release needs, and tag it (RELEASE=--dry-run only checks)
	@lab/bootstrap dev
	@.venv/bin/python tests/release.py $(RELEASE)
