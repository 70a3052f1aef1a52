# Everything a developer or a machine runs goes through here; `make help` lists it.

PYTHON ?= python3
VENV := .venv
# Tests start hundreds of Pythons: each would compile the product anew, and pytest all tests.
unexport PYTHONDONTWRITEBYTECODE
BIN := $(VENV)/bin
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/compactord
# Spark versions under which the tests marked `spark` have to pass.
SPARKS := 3.5 4.0 4.1 4.2 4.3
PYTEST_ARGS ?=
# How many processes share the tests, for two cores: many tests wait. 0: pytest's own runs them.
WORKERS ?= 4
# A worker that dies ends the run: xdist may wait for ever for one in its place.
PARALLEL = --numprocesses $(WORKERS) --max-worker-restart 0
# Where tests put their files: in memory if that has 8 GB to spare, as each fsync waits for a disk.
IN_MEMORY := $(shell test "$$(df -B1G --output=avail /dev/shm 2>&1 | tail -n 1)" -ge 8 2>/dev/null && echo /dev/shm)
test test-fast test-hdfs: export PYTEST_DEBUG_TEMPROOT = $(IN_MEMORY)
# `whole`: tests run every case, not a sample (tests/sampling.py).
COMPACTORD_TESTS ?=
export COMPACTORD_TESTS
# Of `make bench`: figures of an earlier run, to be compared with.
COMPARE ?=
# Of the soak.
SECONDS ?= 600
# Of random histories beside pypaimon or Java: how many, and the seed of the first.
HISTORIES ?= 1000
SEED ?= 0
# How many commands are run for the sake of their ends.
EXITS ?= 200
# How many commits a reader follows.
COMMITS ?= 1000

.DEFAULT_GOAL := help
.PHONY: help demo setup lint test-fast test test-nightly test-hdfs test-spark test-bench test-deploy test-cluster tools deploy-tools \
	cluster-tools stores lock manifests changelog \
	bench bench-large soak contest exits faults follow workloads \
	compat compat-pypaimon compat-histories compat-oldest compat-releases evolutions merge-histories \
	maintenance-histories

help: ## Show the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | \
		awk -F ':.*## ' '{ printf "  %-13s %s\n", $$1, $$2 }'

demo: $(VENV)/.runs ## Watch serve keep two tables compact while jobs fill them; one to two minutes
	$(BIN)/compactord-demo

# The commands and a Java: what the demo needs. No object stores, databases or tests.
$(VENV)/.runs: pyproject.toml
	@echo "Once, a minute, or ten at 10 Mbit/s: download 0.6 GB, keep 0.9 GB in $(VENV) and 0.4 GB in pip's cache."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --use-pep517 --editable '.[jre]'
	@touch $@

setup: $(VENV)/.installed ## Make .venv for developers: all stores and databases, and what tests need

$(VENV)/.installed: $(VENV)/.runs
	$(BIN)/python -m pip install --quiet --use-pep517 --editable '.[jre,jdbc,hive,rest,stores,hdfs,sketches,dev]'
	@touch $@

tools: setup $(VENV)/.tools ## A browser, moto, PostgreSQL for `make test`; fetched once into the cache
	$(BIN)/python -m tests.tools.obtain tools

$(VENV)/.tools: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --use-pep517 --editable '.[tools]'
	@touch $@

deploy-tools: setup $(VENV)/.deploy-tools ## Helm, Prometheus, kube-score: built once, 20 min of two cores
	$(BIN)/python -m tests.tools.obtain deploy-tools

$(VENV)/.deploy-tools: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --use-pep517 --editable '.[deploy-tools]'
	@touch $@

cluster-tools: setup ## Kubernetes' own servers: built once, 12 min of two cores
	$(BIN)/python -m tests.tools.obtain cluster-tools

stores: setup ## Servers of stores for tests: MinIO, fake-gcs-server, Azurite, HDFS; once
	$(BIN)/python -m tests.tools.store_servers

# Run it on Linux with the Python version of the image's Debian: what is locked depends on both.
lock: setup $(CACHE)/pip-tools/.installed ## Fix the image's packages by version and checksum
	$(LOCK) --output-file $(CACHE)/pip-tools/build.txt requirements/build.in
	$(LOCK) --extra jdbc --extra hive --extra rest --extra stores --extra hdfs --extra sketches --output-file $(CACHE)/pip-tools/runtime.txt pyproject.toml
	{ echo '# What builds the wheels of the image; made by `make lock`.'; \
		cat $(CACHE)/pip-tools/build.txt; } > requirements/build.txt
	{ echo '# What the image holds beside compactord, by version and checksum; made by `make lock`.'; \
		cat $(CACHE)/pip-tools/runtime.txt; } > requirements/runtime.txt

LOCK = $(CACHE)/pip-tools/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
	--no-header --no-annotate --no-emit-find-links --no-emit-index-url --no-emit-trusted-host

$(CACHE)/pip-tools/.installed:
	$(PYTHON) -m venv $(CACHE)/pip-tools
	$(CACHE)/pip-tools/bin/pip install --quiet 'pip-tools>=7.4,<8'
	@touch $@

changelog: setup ## Print the next release's notes; with VERSION=X write them to CHANGELOG.md
	$(BIN)/towncrier build --version $(or $(VERSION),next) $(if $(VERSION),--yes,--draft)

manifests: deploy-tools ## Renew the chart's schema, copies and page, and the plain manifests
	$(BIN)/python -m tests.deploy.rendering

test: tools ## All tests but those of the next six, of some a sample; fetches Java Paimon's jar
	$(BIN)/python -m tests.oracle.judge_jar
	$(BIN)/python -m tests.tools.class_archive
	$(BIN)/python -m pytest -m 'not compat and not hdfs and not bench' --ignore tests/cluster --ignore tests/deploy --ignore tests/spark \
		$(PARALLEL) $(PYTEST_ARGS)

test-nightly: ## `make test test-hdfs` with every case of what these sample, files on the disk
	$(MAKE) test test-hdfs COMPACTORD_TESTS=whole IN_MEMORY= PYTEST_ARGS='--timeout 3600 $(PYTEST_ARGS)'

test-hdfs: setup ## The tests on an HDFS of this machine; fetches its jar once
	$(BIN)/python -m tests.oracle.judge_jar
	$(BIN)/python -m tests.tools.store_servers hdfs
	$(BIN)/python -m tests.tools.class_archive
	$(BIN)/python -m pytest -m hdfs tests/oracle tests/stores $(PARALLEL) $(PYTEST_ARGS)

test-spark: setup ## tests/spark: the engine on embedded Spark, on a standalone cluster, on Connect
	$(BIN)/python -m tests.tools.class_archive
	$(BIN)/python -m pytest tests/spark $(PARALLEL) $(PYTEST_ARGS)

test-bench: tools ## tests/bench: the benches at a tiny size
	$(BIN)/python -m tests.oracle.judge_jar
	$(BIN)/python -m tests.tools.class_archive
	$(BIN)/python -m pytest -m bench tests/bench $(PARALLEL) $(PYTEST_ARGS)

test-deploy: deploy-tools ## tests/deploy: the image, the chart, the manifests, the alerts
	$(BIN)/python -m tests.tools.class_archive
	$(BIN)/python -m pytest tests/deploy $(PARALLEL) $(PYTEST_ARGS)

# Not a part of .ci/run: it needs root, and changes settings of the machine while it runs.
test-cluster: deploy-tools cluster-tools ## tests/cluster: the chart on a real Kubernetes; needs root
	$(BIN)/python -m pytest tests/cluster -n0 $(PYTEST_ARGS)

test-fast: setup ## The tests that need neither Java nor `make tools`
	$(BIN)/python -m pytest -m 'not oracle and not spark and not bench and not compat and not hdfs' \
		--ignore tests/cluster --ignore tests/deploy --ignore tests/browser --ignore tests/tools \
		$(PARALLEL) $(PYTEST_ARGS)

lint: setup ## Style, formatting, types and prose
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python -m mypy
	$(BIN)/python -m tests.tools.prose

evolutions: setup ## Random histories of altered tables beside Java; HISTORIES=1000 SEED=0
	$(BIN)/python -m tests.oracle.judge_jar
	$(BIN)/python -m tests.oracle.many_evolutions --histories $(HISTORIES) --seed $(SEED)

bench: setup ## Measure against Java's core compaction and its Flink job; COMPARE=FILE
	$(BIN)/python -m tests.tools.obtain moto
	$(BIN)/python -m tests.bench $(if $(COMPARE),--compare $(COMPARE))

bench-large: setup ## Measure a bucket of 5 GB; needs 10 GB of disk
	$(BIN)/python -m tests.bench --large

soak: setup ## Ingestion beside a daemon that is killed once; SECONDS=600
	$(BIN)/python -m tests.bench --soak --seconds $(SECONDS)

follow: setup ## A streaming reader of Java's while daemons compact and are killed; COMMITS=1000
	$(BIN)/python -m tests.oracle.judge_jar
	$(BIN)/python -m tests.oracle.following --commits $(COMMITS)

contest: tools ## 200 commits of each of Java's writers and ours at once: JDBC, Hive, REST
	$(BIN)/python -m tests.oracle.judge_jar
	$(BIN)/python -m tests.oracle.many_commits

exits: tools ## Short commands whose ends are watched for aborts; EXITS=200
	$(BIN)/python -m tests.e2e.exits --count $(EXITS)

faults: setup ## Random faults under compaction, expiry and sweep; HISTORIES=1000 SEED=0
	$(BIN)/python -m tests.faults.many_runs --runs $(HISTORIES) --seed $(SEED)

workloads: setup ## Random workloads of the scheduler; HISTORIES=1000 SEED=0
	$(BIN)/python -m tests.simulation.many_workloads --runs $(HISTORIES) --seed $(SEED)

compat: $(addprefix compat-,$(SPARKS)) compat-pypaimon compat-releases ## Other versions of Spark, pypaimon, Paimon

compat-pypaimon: setup $(CACHE)/compat/pypaimon-2.1/.installed
	$(BIN)/python -m tests.oracle.judge_jar
	$(BIN)/python -m pytest -m compat tests/compat $(PYTEST_ARGS)

# Each release's jar is fetched once into the cache.
compat-releases: setup ## Tables of Paimon 0.8 to 1.3, written and read by these releases beside us
	$(BIN)/python -m tests.oracle.judge_jar
	$(BIN)/python -m pytest -m oracle tests/oracle/releases $(PARALLEL) $(PYTEST_ARGS)

compat-histories: setup $(CACHE)/compat/pypaimon-2.1/.installed ## Random histories beside pypaimon; HISTORIES=1000 SEED=0
	$(BIN)/python -m tests.oracle.judge_jar
	$(BIN)/python -m tests.compat --histories $(HISTORIES) --seed $(SEED)

merge-histories: setup ## Random tables of all merge engines against Java; HISTORIES=1000 SEED=0
	$(BIN)/python -m tests.oracle.judge_jar
	$(BIN)/python -m tests.oracle.merge_histories --histories $(HISTORIES) --seed $(SEED)

maintenance-histories: setup ## Random tables maintained by Java and by us; HISTORIES=1000 SEED=0
	$(BIN)/python -m tests.oracle.judge_jar
	$(BIN)/python -m tests.oracle.maintenance_histories --histories $(HISTORIES) --seed $(SEED)

compat-oldest: $(CACHE)/compat/oldest/.installed ## Unit tests on the oldest Python and Arrow; needs python3.10
	$(CACHE)/compat/oldest/bin/python -m pytest tests/unit $(PYTEST_ARGS)

$(CACHE)/compat/oldest/.installed: pyproject.toml
	mkdir -p $(CACHE)/compat
	python3.10 -m venv $(CACHE)/compat/oldest
	$(CACHE)/compat/oldest/bin/python -m pip install --quiet --use-pep517 --editable '.[jre,jdbc,hive,rest,stores,hdfs,sketches,dev]' \
		'pyarrow==23.*' 'numpy==2.0.*'
	@touch $@

# It wants other versions of our own dependencies, so it lives apart.
$(CACHE)/compat/pypaimon-2.1/.installed:
	mkdir -p $(CACHE)/compat
	$(PYTHON) -m venv $(CACHE)/compat/pypaimon-2.1
	$(CACHE)/compat/pypaimon-2.1/bin/python -m pip install --quiet 'pypaimon>=2.1,<2.2'
	@touch $@

# Each version has a virtual environment of its own in the cache, kept for the next time. What Spark
# 3.5 wants for Connect cannot be installed beside numpy 2.
compat-%: EXTRAS = jre,jdbc,hive,rest,stores,hdfs,sketches,dev,connect
compat-3.5: EXTRAS = jre,jdbc,hive,rest,stores,hdfs,sketches,dev

compat-%: $(CACHE)/compat/%/.installed
	$(CACHE)/compat/$*/bin/python -m pytest -m spark tests/spark $(PYTEST_ARGS)

$(CACHE)/compat/%/.installed: pyproject.toml
	mkdir -p $(CACHE)/compat
	$(PYTHON) -m venv $(CACHE)/compat/$*
	$(CACHE)/compat/$*/bin/python -m pip install --quiet --use-pep517 --editable '.[$(EXTRAS)]' 'pyspark==$*.*'
	@touch $@

.PRECIOUS: $(CACHE)/compat/%/.installed
