# `make help` lists what can be made. Everything runs from .venv, which `make setup` creates.

PYTHON_IN_VENV = .venv/bin/python
# Many tests wait for servers and mounts, so six at a time pay even on two cores. A worker takes
# whole files, since their tests share mounts and datasets.
PYTEST_ARGS ?= -n 6 --dist loadfile --no-loadscope-reorder
# What `make check` tests: the layering of packages and folders, names and docstrings.
CHECKED = tests/test_layering.py tests/test_rooms.py tests/test_names.py tests/test_sentences.py
# Without compiled modules each of a test's processes would compile the packages again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup torch check format test test-racy test-docs test-dist test-frameworks test-ceph test-slurm slurm-packages docs dist soak damage fuzz sanitize simulate simulate-proof faults faults-proof demo bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup:  ## install what is missing: system packages (Debian), .venv with what a user needs
	@scripts/setup.sh

torch:  ## the same, PyTorch, and what the checks, tests, benchmarks and the demo need
	@scripts/setup.sh torch

check: torch  ## ruff, mypy, the layering of packages and folders, names and docstrings
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@.venv/bin/mypy
	@$(PYTHON_IN_VENV) -m pytest -q $(CHECKED)

format: torch  ## let ruff sort the imports and lay out the code
	@.venv/bin/ruff check --fix --quiet || true
	@.venv/bin/ruff format

test: check docs  ## the checks and all tests; PYTEST_ARGS="-n 0 -k mount" to choose
	@$(PYTHON_IN_VENV) -m pytest $(CHECKED:%=--ignore=%) $(PYTEST_ARGS)

test-racy: torch  ## the tests of threads, processes, mounts and peers, ROUNDS=20 times beside a busy machine
	@scripts/test-racy.sh $(or $(ROUNDS),20)

test-docs: torch slurm-packages  ## run the commands and Python blocks of all pages, in an environment made as they say
	@DIESELFS_ALL_PAGES=1 $(PYTHON_IN_VENV) -m pytest -n 0 tests/docs

test-dist: dist torch  ## install the packages of dist/ into empty environments, and read through a mount there
	@DIESELFS_DIST=dist $(PYTHON_IN_VENV) -m pytest -n 0 tests/dist

test-frameworks: torch  ## read a mount with TensorFlow and DALI, in an environment of their own (2 GB)
	@scripts/frameworks.sh build/frameworks
	@DIESELFS_FRAMEWORKS=build/frameworks $(PYTHON_IN_VENV) -m pytest -n 0 tests/mount/test_other_frameworks.py

dist:  ## build dist/: the source package, and a wheel with the C extension for Python 3.11 and later
	@scripts/setup.sh dist
	@scripts/dist.sh

docs:  ## build the site of docs/ into site/
	@scripts/setup.sh docs
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build

test-ceph: torch  ## the stores against a real Ceph: librados and its S3 gateway (installs it)
	@scripts/ceph.sh install
	@DIESELFS_CEPH=1 $(PYTHON_IN_VENV) -m pytest -n 0 tests/ceph

test-slurm: torch slurm-packages  ## the prolog and epilog against Debian's Slurm, two nodes on loopback (installs it)
	@DIESELFS_SLURM=1 $(PYTHON_IN_VENV) -m pytest -n 0 tests/slurm

slurm-packages:
	@PATH=$$PATH:/usr/sbin; for program in slurmctld slurmd sbatch munged; do command -v $$program; done | grep -c . | grep -qx 4 || scripts/setup.sh --as-root slurmctld slurmd slurm-client munge

soak: torch  ## half an hour of training while its store and other mounts come and go; SOAK_ARGS="--minutes 1"
	@$(PYTHON_IN_VENV) -m tests.faults.soak $(SOAK_ARGS)
	@$(PYTHON_IN_VENV) -m tests.mount.soak $(SOAK_ARGS)

damage: torch  ## 300 files of all kinds damaged at random, under a mount and under every command; DAMAGE_ARGS="--count 20"
	@$(PYTHON_IN_VENV) -m tests.faults.random_damage $(DAMAGE_ARGS)

fuzz: torch  ## damaged bytes for every decoder; FUZZ_ARGS="--minutes 60 snapshot"
	@$(PYTHON_IN_VENV) -m tests.fuzz.fuzz $(FUZZ_ARGS)

sanitize: torch  ## the C extension's tests and fuzzer under ASan and UBSan, then TSan
	@scripts/sanitize.sh

simulate: torch  ## the peer cache under a simulated network and clock: SEEDS=5000 of them, or SEED=123 with a trace
	@$(PYTHON_IN_VENV) -m tests.simulation.run $(if $(SEED),--seed $(SEED) --trace,--seeds $(or $(SEEDS),1000))

simulate-proof: torch  ## break the peer cache in known ways: the simulation must find each
	@$(PYTHON_IN_VENV) -m tests.simulation.proof

faults: torch  ## the fault bench, and its table in docs/reliability.md
	@DIESELFS_LONG_FAULTS=1 $(PYTHON_IN_VENV) -m tests.faults.report

faults-proof: torch  ## take out each check that the fault bench tests: its case must fail
	@$(PYTHON_IN_VENV) -m tests.faults.proof

demo: torch  ## pack, index, mount and train on real images, then clean up
	@scripts/demo.sh

bench: torch  ## the benchmarks, as JSON lines; BENCH_ARGS="--quick" to try them
	@$(PYTHON_IN_VENV) -m benchmarks.run $(BENCH_ARGS)

clean:  ## remove .venv and everything that can be made again
	rm -rf .venv metadata/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
