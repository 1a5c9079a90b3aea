"""The commands for WMT14 in examples/reproduce/README.md, run at a small size on a data set of the same form."""

import itertools
import json
import re
import shlex
from pathlib import Path

import pytest
from helpers import ROOT, TINY, as_lines, as_options, read_json, run_python
from toy_corpus import toy_corpus

TEXT = (ROOT / "examples/reproduce/README.md").read_text(encoding="utf-8")
BLOCKS = [block.replace("\\\n", " ") for block in re.findall(r"```bash\n(.+?)```", TEXT, re.DOTALL)]
COMMANDS = {Path(words[-1]).name: words for words in map(shlex.split, BLOCKS) if "wmt14" in words[-1]}
# Later options win. A model and a vocabulary for which a second is enough:
SHORT = as_options({**TINY, "max_steps": 3, "tokens_per_update": 600, "tokens_per_batch": 300, "checkpoint_steps": 1})


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_runs(name, tmp_path):
    command = COMMANDS[name]
    launch, train, options = command[:4], command[4:7], dict(zip(command[7::2], command[8::2], strict=True))
    assert launch == ["accelerate", "launch", "--config_file", "examples/accelerate/8_gpus.yaml"]
    (tmp_path / "data").mkdir()
    for split, pairs in toy_corpus(80, 8, 8).items():  # in the form of WMT14 on the Hub
        languages = options["--source_lang"], options["--target_lang"]
        rows = [{"translation": dict(zip(languages, pair, strict=True))} for pair in pairs]
        (tmp_path / "data" / f"{split}.jsonl").write_bytes(as_lines(map(json.dumps, rows)))
    del options["--dataset_config"]
    changed = {**options, "--dataset_name": str(tmp_path / "data"), "--output_dir": str(tmp_path / "run")}
    assert run_python(*train, *itertools.chain(*changed.items()), *SHORT, cwd=tmp_path).succeeded
    results = read_json(tmp_path / "run/results.json")
    assert (results["test_sentences"], results["averaged_checkpoints"]) == (8, [1, 2, 3])
    big, training = options["--preset"] == "big", results["settings"]["training"]
    assert (training["mixed_precision"], training["average_checkpoints"]) == ("bf16", 20 if big else 5)
    config = read_json(tmp_path / "run/model/config.json")
    assert config["dropout"] == (0.3 if big and options["--target_lang"] == "de" else 0.1)
