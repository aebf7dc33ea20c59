# `make` lists the targets. demo and test set up all they need: Debian packages, .venv, torch.
# JOBS=n limits the compiler, FUZZ_SECONDS=n (or FUZZ_RUNS=n for each) the fuzzers; build/*.log has what is not shown.
export JOBS ?= $(shell nproc)
export FUZZ_SECONDS ?= 120
export FUZZ_RUNS

PYTHON = .venv/bin/python
FILES = git ls-files --cached --others --exclude-standard
CXX_FILES = $(FILES) '*.h' '*.cpp'
PYTEST = $(PYTHON) -m pytest -q --timeout=300
# Each worker has a process and a server of its own.
WORKERS ?= $(shell echo $$(($(JOBS) > 7 ? 8 : $(JOBS) + 1)))
IN_PARALLEL = -n $(WORKERS) --dist worksteal
# The tests of the conformance suite and of the GPU have targets of their own.
WITHOUT_SUITES = --ignore=tests/python/conformance --ignore=tests/python/gpu

# $(call need,path): one sentence when a part of the checkout is missing.
need = @test -e $(1) || { echo "make $@ needs $(1), which this checkout does not have." >&2; exit 1; }

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help installed setup setup-system setup-checks setup-programs build demo test test-fast test-core wheel test-wheel test-libraries test-transformers test-pytorch test-providers compat conformance nightly programs \
        faults soak bench lint format asan tsan tsan-torch core-clang torch-clang macos fuzz fuzz-kernels gpu-build gpu-test clean

help:            ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */  \1\t/' | expand -t 16

demo: installed  ## Train a small model on a remote device, with all set-up
	$(call need,examples/demo.py)
	@$(PYTHON) examples/demo.py

test: build      ## The tests: C++, then Python with the examples, with all set-up
	@ctest --preset release -j $(JOBS) --progress
	$(call need,tests/python)
	@$(PYTEST) $(IN_PARALLEL) tests/python tests/fault $(WITHOUT_SUITES)

test-fast: build ## What to run after every edit: most C++ tests, and the Python tests that start no processes
	@for folder in wire marshal client server; do \
		build/release/tests/cpp/$${folder}_test --gtest_brief=1 || exit 1; done
	@$(PYTEST) $(IN_PARALLEL) -m "not slow" tests/python $(WITHOUT_SUITES)

build: setup     ## Build, and make `import torch_remote` work in .venv
	@tools/build.sh release

# What a user needs: no tests. In a tree where `make build` was run, what that has compiled.
BUILT = $(if $(wildcard build/release/src/_C*),release,install)
installed: setup
	@tools/build.sh $(BUILT)

wheel: installed ## A wheel for .venv's minor version of torch, into dist
	@tools/wheel.sh .venv/bin/python build/$(BUILT)

test-wheel: build  ## The tests of the wheel: what is in it, and that it works where only torch is
	$(call need,tests/wheel)
	@$(PYTEST) tests/wheel

test-libraries: build  ## The tests with transformers, Lightning and others, in an environment of their own
	$(call need,tests/libraries)
	@tools/setup.sh libraries
	@build/libraries-venv/bin/python -m pytest -q --timeout=300 -n 2 --dist loadfile tests/libraries

# The tests are in no package: CHECKOUT is a clone of transformers' repository that has the version's tag.
test-transformers: build  ## Transformers' own tests of five models, CPU against remote (CHECKOUT=path FAMILY=bert)
	$(call need,tests/upstream)
	@test -n "$(CHECKOUT)" || { echo "make $@ needs CHECKOUT, a clone of transformers: TESTING.md." >&2; exit 1; }
	@tools/setup.sh transformers
	@build/transformers/venv/bin/python tests/upstream/transformers_suite.py $(CHECKOUT) \
		$(if $(FAMILY),--family $(FAMILY))

# CHECKOUT is PyTorch's source tree at .venv's version: TESTING.md says which commit.
test-pytorch: build  ## PyTorch's device-generic tests, CPU against remote (CHECKOUT=path FILE=indexing SHARD=1/8)
	$(call need,tests/upstream)
	@test -n "$(CHECKOUT)" || { echo "make $@ needs CHECKOUT, PyTorch's source tree: TESTING.md." >&2; exit 1; }
	@tools/setup.sh pytorch
	@build/pytorch/venv/bin/python tests/upstream/pytorch_suite.py $(CHECKOUT) \
		$(if $(FILE),--file $(FILE)) $(if $(SHARD),--shard $(SHARD))

test-providers: build  ## The Modal and Ray providers with their own SDKs, in an environment of their own
	$(call need,tests/providers)
	@tools/setup.sh providers
	@tools/alone.sh build/providers/venv/bin/python -m pytest -q --timeout=300 tests/providers

compat: setup-system  ## Build a wheel for another torch below build/compat, and try it (TORCH=2.12.0)
	@tools/compat.sh "$(TORCH)"

test-core: setup-system  ## The tests of the torch-free layers only: seconds
	@tools/build.sh core
	@ctest --preset core -j $(JOBS) --progress

SUITES = "run.py $(if $(FULL),--full)" errors.py sync_budget.py kernel_suite.py model_suite.py
conformance: build  ## PyTorch's own samples and real models, remote against CPU (FULL=1: every dtype)
	$(call need,tests/python/conformance/run.py)
	@$(PYTEST) tests/python/conformance
	@failed=; for suite in $(SUITES); do printf '\n--- %s\n' "$$suite"; \
		$(PYTHON) tests/python/conformance/$$suite || failed="$$failed $$suite"; done; \
		test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

nightly: build   ## What is too long for CI: every suite with every sample, programs, faults, soak (SHARD=1/4)
	@$(PYTHON) tests/python/conformance/run.py --full --timeout 300 $(if $(SHARD),--shard $(SHARD))
	@$(PYTHON) tools/thread_safety.py --each
	@$(MAKE) programs faults soak

programs: build  ## Random programs, remote against CPU (STEPS=20000 SEED=1)
	$(call need,tests/python/test_programs.py)
	@TORCH_REMOTE_PROGRAM_STEPS=$(or $(STEPS),20000) TORCH_REMOTE_PROGRAM_SEED=$(or $(SEED),1) \
		$(PYTEST) --timeout=0 tests/python/test_programs.py

faults: build    ## Training cut at CUTS (2000) random bytes and in frame headers, and 50 kills and stops (SEED=1)
	$(call need,tests/fault/run.py)
	@$(PYTHON) tests/fault/run.py --cuts $(or $(CUTS),2000) --seed $(or $(SEED),1)
	@TORCH_REMOTE_FAULT_MOMENTS=50 $(PYTEST) tests/fault/test_kills.py tests/fault/test_relaunch.py

soak: build      ## A million storages and signatures, ten thousand connects: nothing grows (SCALE=1)
	$(call need,tests/fault/soak.py)
	@$(PYTHON) tests/fault/soak.py --scale $(or $(SCALE),1)

bench: build     ## Measure against the bars (CHECK=counts: only what no noise changes)
	$(call need,benchmarks/python/bench.py)
	@$(PYTHON) benchmarks/python/bench.py $(if $(CHECK),--check $(CHECK))

lint: setup-checks setup  ## Format, clang-tidy, ruff, mypy, the include table, width, names in documents
	@$(CXX_FILES) | xargs -r clang-format-14 --dry-run -Werror
	@tools/tidy.sh
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy
	@$(PYTHON) tools/check_layers.py
	@$(PYTHON) tools/check_classes.py
	@$(PYTHON) tools/check_width.py
	@$(PYTHON) tools/check_docs.py
	@$(PYTHON) tools/check_promises.py
	@$(PYTHON) tools/check_threads.py

format: setup-checks setup  ## Rewrite the sources in the project's format
	@$(CXX_FILES) | xargs -r clang-format-14 -i
	@$(PYTHON) -m ruff check --fix --exit-zero --quiet .
	@$(PYTHON) -m ruff format .

asan: setup-system  ## The torch-free tests under ASan and UBSan
	@tools/build.sh core-asan
	@ctest --preset core-asan -j $(JOBS) --progress

tsan: setup-system  ## The torch-free tests under ThreadSanitizer
	@tools/build.sh core-tsan
	@ctest --preset core-tsan -j $(JOBS) --progress

tsan-torch: setup  ## A session that eight threads use, client and server under ThreadSanitizer: minutes to build
	@tools/build.sh tsan
	@build/tsan/tests/cpp/stress_test

core-clang: setup-system setup-checks  ## The torch-free layers with clang's -Wthread-safety -Werror
	@tools/build.sh core-clang

torch-clang: build setup-checks  ## marshal, client and server with clang's -Wthread-safety -Werror: parsed, not compiled
	@$(PYTHON) tools/thread_safety.py

macos: setup-system  ## Compile and link client, TorchDevice and bindings for macOS on arm64, by hand: nothing is run
	@tools/macos.sh

fuzz: setup setup-checks  ## Every fuzz target, FUZZ_SECONDS (120) in all (RELEASE=1: a release build of them)
	@tools/build.sh fuzz$(if $(RELEASE),-release)
	@tools/fuzz.sh fuzz$(if $(RELEASE),-release)

fuzz-kernels: setup setup-checks  ## Sessions with PyTorch's kernels on tiny tensors, until CALLS (1000000) were made
	@tools/build.sh fuzz
	@build/fuzz/fuzz_kernels --runs $(or $(CALLS),1000000) --seed $(or $(FUZZ_SEED),1)

gpu-build:       ## With the system's Python and torch, into build/gpu; installs nothing
	@tools/build.sh gpu

gpu-test: gpu-build  ## The tests that need a CUDA device
	$(call need,tests/python/gpu)
	@PYTHONPATH=build/gpu/python:tests/python/gpu/stand_ins python3 -m pytest -q tests/python/gpu

clean:           ## Remove what the build left; .venv stays
	rm -rf build python/torch_remote/bin python/*/_C*.so

setup: setup-system
	@tools/setup.sh python

setup-system:
	@tools/setup.sh system

setup-checks:
	@tools/setup.sh checks

setup-programs:  ## A browser and an sshd, so that their tests are not skipped (needs root)
	@tools/setup.sh programs
