# Each target installs what it needs into .venv, once. On a fresh machine Python 3.11 and make are enough. Where .venv is
# there already, what follows takes effect after `make clean`, which removes it and runs/, or with VENV=another.
#   make test PYTHON=python3.12      another Python, 3.11 to 3.14
#   make test TORCH=2.13.0           another version of torch, or the URL of an index with the build for your device
# The tests are dealt out to two processes of one thread: their models are too small for two threads.
PYTHON ?= python3.11
TORCH ?=
TORCH_INDEX = $(if $(findstring ://,$(TORCH)),$(TORCH))
TORCH_VERSION = $(if $(TORCH_INDEX),,$(TORCH))
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --constraint $(VENV)/constraints.txt
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

.PHONY: quickstart speedrun reproduce test slow gpu newest floor check docs clean

quickstart: $(VENV)/train  ## train on the embedded corpus, save, load, translate
	$(BIN)/python examples/quickstart.py

END = lc.norm.tok
speedrun: $(VENV)/train  ## Multi30k's record by three seeds, DATA=folder of its files
	for seed in 0 1 2; do run=runs/speedrun/$$seed; \
		$(BIN)/vanilla train --train_source $(DATA)/train.$(END).en.gz --train_target $(DATA)/train.$(END).de.gz \
		--validation_source $(DATA)/val.$(END).en.gz --validation_target $(DATA)/val.$(END).de.gz --bleu_tokenize none \
		--seed $$seed --output_dir $$run $$(test ! -e $$run/run.json || echo --resume) && \
		$(BIN)/vanilla translate $$run/model --input $(DATA)/test_2016_flickr.$(END).en.gz --output $$run/test.de \
		--reference $(DATA)/test_2016_flickr.$(END).de.gz --num_beams 5 --length_penalty 1 --bleu_tokenize none || exit; done
	$(BIN)/python examples/reproduce/seeds.py runs/speedrun/0 runs/speedrun/1 runs/speedrun/2

REPORT = runs/reproduce
TOY = --train_file $(REPORT)/corpus/train.jsonl --validation_file $(REPORT)/corpus/validation.jsonl
TABLES = $(foreach table,2/table2 3/table3 4/table,$(REPORT)/table$(table).md)
reproduce: $(TABLES) $(REPORT)/attention  ## every table of the paper at smoke scale, in runs/reproduce/report.md
	cat $(TABLES) > $(REPORT)/report.md

$(REPORT)/corpus: | $(VENV)/test
	$(BIN)/python examples/toy_corpus.py --train 5000 --validation 100 --test 100 --output_dir $@

$(REPORT)/translation/results.json: | $(REPORT)/corpus
	$(BIN)/python -m modeling_vanilla train $(TOY) --test_file $(REPORT)/corpus/test.jsonl --output_dir $(@D) \
		--encoder_layers 2 --decoder_layers 2 --dropout 0.1 --vocab_size 1000 --max_steps 800 \
		--tokens_per_update 2500 --tokens_per_batch 2500 --warmup_steps 200 --learning_rate_scale 0.5 \
		--validate_steps 400 --checkpoint_steps 200 --average_checkpoints 1 \
		$$(test ! -e $(@D)/run.json || echo --resume)

$(REPORT)/table2/table2.md: $(REPORT)/translation/results.json
	$(BIN)/python examples/reproduce/table2.py --runs $(REPORT)/translation --output_dir $(@D)

$(REPORT)/table3/table3.md: | $(REPORT)/corpus
	$(BIN)/python examples/reproduce/table3.py $(TOY) --scale examples/reproduce/scales/smoke.json --output_dir $(@D)

$(REPORT)/table4/table.md: | $(VENV)/test
	$(BIN)/python examples/reproduce/table4.py --scale smoke --output_dir $(@D)

$(REPORT)/attention: $(REPORT)/translation/results.json
	$(BIN)/python -m modeling_vanilla attention $(REPORT)/translation/model \
		--sentence "The old farmer sees a small dog." --output_dir $@

test: $(VENV)/test  ## the fast tests
	$(PYTEST)

slow: $(VENV)/test  ## the tests that take longer
	$(PYTEST) -m slow

gpu: $(VENV)/test  ## the tests that need a GPU, and the speed of training and decoding there
	$(BIN)/python -m pytest -m gpu
	for dims in base big; do \
		$(BIN)/python benchmarks/train_step.py --device cuda --dims $$dims --bf16 --tokens 16384 --rounds 10 || exit; done
	for how in "--passes 8" "--passes 1" "--compile" "--compile layers"; do \
		$(BIN)/python benchmarks/train_step.py --device cuda --dims base --tokens 25000 --bf16 $$how || exit; done
	$(PIP) nvidia-cublas-cu12  # CTranslate2 is built for CUDA 12, whatever torch is built for
	LD_LIBRARY_PATH=$$(realpath $(VENV)/lib/python*/site-packages/nvidia/cublas/lib):$$LD_LIBRARY_PATH \
		$(BIN)/python benchmarks/decode.py --device cuda --dims base --rounds 5 \
		--engines "ours bf16" "MarianMT bf16" "CTranslate2 float16"

newest:  ## the fast tests under the newest versions that setup.py allows
	rm -rf .venv-newest
	$(MAKE) test VENV=.venv-newest CONSTRAINTS=/dev/null

floor:  ## the fast tests under the oldest versions that setup.py allows
	$(MAKE) test VENV=.venv-floor CONSTRAINTS=constraints-floor.txt

check: $(VENV)/test  ## formatting, lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/test  ## the site in site/, without the network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv .venv-floor .venv-newest runs build site *.egg-info

# torch comes first and alone: the version or build is taken as it stands, and what needs torch then finds it there.
$(VENV)/torch: $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	cp $(CONSTRAINTS) $(VENV)/constraints.txt
	$(if $(TORCH_VERSION),sed -i /^torch==/d $(VENV)/constraints.txt && echo torch==$(TORCH_VERSION) >> $(VENV)/constraints.txt)
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	touch $@

$(VENV)/train $(VENV)/test: $(VENV)/%: setup.py $(VENV)/torch
	$(PIP) --editable ".[$*]"
	du -sh $(VENV)
	touch $@
