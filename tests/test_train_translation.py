"""The command `vanilla train` from end to end, and one line for everything that can be wrong with its input."""

import json
import re
import shutil
from pathlib import Path

import helpers
import pytest
from helpers import TINY, as_options, call, make_tokenizer, run_python, save_folder, tree, write_toy_corpus
from huggingface_hub import ModelCard
from plain_search import log_probs_of

from modeling_vanilla import Translator, VanillaForConditionalGeneration, preset_config
from modeling_vanilla.cli.train import main
from modeling_vanilla.training import DataOptions, ModelOptions
from modeling_vanilla.training import run as training_run
from modeling_vanilla.training.model import make_model
from modeling_vanilla.training.results import model_flops

SHORT = {"max_steps": 2, "tokens_per_update": 500, "tokens_per_batch": 250, "warmup_steps": 2}
MODEL = {"preset": "tiny", **TINY, "init_std": 0.03}
FINISHED = {**MODEL, **SHORT, "max_steps": 3, "checkpoint_steps": 1}

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_toy_corpus(tmp_path_factory.mktemp("corpus"), train=100, validation=4, test=4)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, files):
    """A run of three steps in a process of its own: its folder, its results.json, and what the command said."""
    run = tmp_path_factory.mktemp("finished") / "run"
    options = as_options({**files, **FINISHED, "output_dir": run})
    done = run_python("-m", "modeling_vanilla", "train", *options, cwd=run.parent).succeeded
    assert "Traceback" not in done.errors
    return run, helpers.read_json(run / "results.json"), done


def test_languages_are_those_given_or_of_the_run_resumed_or_of_the_model_or_name_columns():
    text, columns = {"train_source": "a", "train_target": "b"}, {"train_file": "a.csv"}
    catalogue = {"train_file": "a.PO.gz"}
    was = {"data": {"source_lang": "ko", "target_lang": "fr"}}
    cases = [(files, None, None, (None, None)) for files in (text, catalogue)]
    cases += [(columns, None, None, ("en", "de")), (text, was, None, ("ko", "fr"))]
    cases += [({**files, "target_lang": "cs"}, was, None, ("ko", "cs")) for files in (text, columns)]
    cases += [({**files, "target_lang": "cs"}, None, "model", (None, "cs")) for files in (text, columns)]
    cases.append(({**columns, "target_lang": "cs"}, None, None, ("en", "cs")))
    for given, previous, name, expected in cases:
        data = training_run.with_languages(DataOptions(**given), previous, ModelOptions(model=name))
        assert (data.source_lang, data.target_lang) == expected


@pytest.mark.parametrize("split_of", [{"de": "train", "fr": "test"}, {"de": "test", "fr": "train"}])
def test_a_tag_that_is_no_token_ends_a_run_at_its_start(tmp_path, split_of):
    options = {**MODEL, **SHORT, "output_dir": tmp_path / "run", "tokenizer": tmp_path / "tokenizer"}
    tokenizer = make_tokenizer(["a dog", "ein Hund"])
    tokenizer.add_tokens([">>de<<"])
    tokenizer.save_pretrained(options["tokenizer"])
    for tag, split in split_of.items():
        path = options[f"{split}_file"] = tmp_path / f"{split}.jsonl"
        path.write_text(f'{{"en": ">>{tag}<< a dog", "de": "ein Hund"}}\n' * 9, encoding="utf-8")
    assert call(main, *as_options(options)).error == f"{split_of['fr']} data: >>fr<< is no token; the tags are >>de<<"
    assert not (tmp_path / "run").exists()


# Options in a file


def test_a_runs_record_is_a_config_for_another(finished, tmp_path, files, monkeypatch):
    """The options given win. What the record says of the data by a digest is no option."""
    run, results, _ = finished
    monkeypatch.setattr(training_run, "device_flops", lambda accelerator: 1e6)  # on a CPU none are measured
    options = {"config": run / "run.json", "output_dir": tmp_path / "run", "max_steps": 1, "seed": 7}
    assert call(main, *as_options(options)).succeeded
    again = helpers.read_json(tmp_path / "run" / "results.json")
    assert (again["steps"], again["settings"]["training"]["seed"]) == (1, 7)
    assert again["settings"]["model"] == results["settings"]["model"]
    mfu = again["flops"] / again["train_seconds"] / 1e6
    assert (results["mfu"], again["mfu"]) == (None, pytest.approx(mfu, rel=1e-3))


BAD_CONFIGS = [
    ("a: [", "config: file.yaml is no YAML: while parsing a flow node"),
    ("nbest: 2", "unrecognized arguments: --nbest=2"),
    ("learning_rate: 1", "learning_rate and learning_rate_scale set the same"),
    ("mixed_precision: fp15", "mixed_precision must be no or bf16 or fp16, not fp15"),
    ("tokenizer_algorithm: unigram", "tokenizer_algorithm must be bpe or wordpiece, not unigram"),
    ("revision: main", "revision main: needs model, which it is a revision of"),
]


@pytest.mark.parametrize(("text", "said"), BAD_CONFIGS)
def test_a_config_that_is_none_or_contradicts_the_command_line(text, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file.yaml").write_text(text, encoding="utf-8")
    options = ("--config", "file.yaml", "--output_dir", "run", "--learning_rate_scale", 1)
    assert call(main, *options).error.startswith(said)


# End to end


def test_a_run_writes_model_results_and_picture(finished):
    run, results, done = finished
    others = {"best", "model", "results.json", "loss.png", "run.json", "tensorboard"}
    assert {path.name for path in run.iterdir()} == {f"checkpoint-{step}" for step in (1, 2, 3)} | others
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert (results["test_sentences"], results["steps"], results["averaged_checkpoints"]) == (4, 3, [1, 2, 3])
    assert all(results[name] > 0 for name in ("train_seconds", "tokens_per_second", "parameters", "tokens"))
    shown = json.loads(done.output)
    assert (shown.pop("model"), shown.pop("results")) == (str(run / "model"), str(run / "results.json"))
    assert shown.pop("validation_bleu") == pytest.approx(results["validation"]["bleu"], abs=0.005)
    assert shown == {name: pytest.approx(results[name], abs=0.006) for name in shown}


def test_the_model_folder_loads_says_what_it_is_and_has_the_loss_written(finished, files):
    """That of the mean of the three checkpoints, not of the last."""
    run, results, _ = finished
    translator = Translator.from_pretrained(run / "model")
    model, tokenizer, config = translator.model, translator.tokenizer, translator.model.config
    assert (config.vocab_size, config.init_std, model.num_parameters()) == (320, 0.03, results["parameters"])
    assert ModelCard.load(run / "model" / "README.md").data.language == ["en", "de"]
    for name, content in tree(run / "model").items():
        assert name.endswith(".safetensors") or str(run.parent).encode() not in (content or b""), name
    texts = [Path(files[name]).read_text("utf-8").splitlines() for name in ("train_file", "validation_file")]
    pairs = [json.loads(line)["translation"] for lines in texts for line in lines]
    ids = [(tokenizer(pair["en"]).input_ids, tokenizer(text_target=pair["de"]).input_ids) for pair in pairs]
    lengths = [(len(source), len(target)) for source, target in ids[:100]]
    # Of 100 sources the 99.9th percentile is the longest.
    assert (config.max_source_tokens, config.max_source_sentences, config.source_lang) == (max(lengths)[0], 1, "en")
    flops = sum(model_flops(config, *pair) for pair in lengths) * results["tokens"] / sum(map(sum, lengths))
    assert results["flops"] == pytest.approx(flops)
    log_probs = [value for pair in ids[100:] for value in log_probs_of(model, *pair)]
    assert results["validation"]["loss"] == pytest.approx(-sum(log_probs) / len(log_probs), rel=1e-5)


def test_a_tokenizer_of_another_model(tmp_path):
    """Such as T5's, without BOS; and a vocabulary that is larger, a multiple of 64."""
    tokenizer = make_tokenizer(["a dog sees a cat"], 264)
    tokenizer.bos_token = None
    options, overrides = ModelOptions("tiny", tokenizer="t5"), {**TINY, "vocab_size": 320}
    save_folder(tmp_path / "model", make_model(None, options, overrides, tokenizer), tokenizer)
    model = make_model(tmp_path / "model", ModelOptions(), {}, tokenizer)
    assert (model.config.vocab_size, model.config.decoder_start_token_id) == (320, tokenizer.pad_token_id)
    assert model(**tokenizer("a dog", text_target="a cat", return_tensors="pt")).loss.isfinite()


def test_fine_tuning_that_ended_before_its_first_checkpoint_goes_on_with_its_model(finished, files, tmp_path):
    """It need not be named again, nor the dropout."""
    run, options = tmp_path / "run", {**files, "max_steps": 1, "output_dir": tmp_path / "run"}
    assert call(main, *as_options({**options, "model": finished[0] / "model", "dropout": 0.3})).succeeded
    record = helpers.read_json(run / "run.json")
    for path in [path for path in run.iterdir() if path.name != "run.json"]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for _ in range(2):  # the second time from its checkpoint
        assert call(main, *as_options({**options, "resume": True})).succeeded
        assert helpers.read_json(run / "run.json") == record


# Bad input


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A tokenizer and models that do not fit it, or cannot be trained."""
    folder = tmp_path_factory.mktemp("folders")
    tokenizer = make_tokenizer(["a dog sees a cat"], 264)
    tokenizer.save_pretrained(folder / "tokenizer")
    config = preset_config("tiny", **{**TINY, "vocab_size": 304})
    VanillaForConditionalGeneration(config).save_pretrained(folder / "model")
    save_folder(folder / "marian", helpers.make_marian(264), tokenizer)
    save_folder(folder / "no_start", helpers.make_tiny(264, decoder_start_token_id=None), tokenizer)
    return folder


LEARNED = {**MODEL, "position_embedding_type": "learned", "max_position_embeddings": 16}
BAD_INPUT = [
    ({**MODEL, "report_to": "nobody"}, "report_to: 'nobody' is no installed tracker of accelerate; tensorboard"),
    ({**MODEL, "resume": True}, "holds no run, as it has no run.json"),
    ({**MODEL, "early_stopping": 3, "validation_file": None}, "early_stopping 3: there are no validation data"),
    (
        {**MODEL, "tokenizer": "tokenizer", "vocab_size": 263},
        "tokenizer has ids for 264 tokens, the model 263",
    ),
    ({"model": "model", "d_model": 32}, "d_model cannot be changed"),
    ({"model": "marian"}, "^model: marian is a marian; vanilla convert may convert it$"),
    ({"model": "no_start"}, "^decoder_start_token_id is None in VanillaConfig; training needs one$"),
    (LEARNED, "^max_position_embeddings 16: a text to train or validate on has [0-9]+ tokens$"),
    # The validation data alone have a longer one.
    ({**LEARNED, "max_source_length": 16, "max_target_length": 16}, "^max_position_embeddings 16: a text "),
]


@pytest.mark.parametrize(("values", "message"), BAD_INPUT)
def test_bad_input(values, message, files, folders, tmp_path, monkeypatch):
    monkeypatch.chdir(folders)
    done = call(main, *as_options({**files, **SHORT, "output_dir": tmp_path / "run", **values}))
    assert re.search(message, done.error) and done.errors.count("\n") == 1
    assert not (tmp_path / "run").exists()


# A folder that holds another run


# The options of the finished run but for one; None is not given.
OTHER_RUNS = {"d_model": 32, "encoder_ffn_dim": None, "init_std": None, "seed": 1, "tokenizer": "tokenizer"}
OTHER_RUNS |= {"max_steps": 2, "train_file": "other.jsonl"}
SAID = {"max_steps": "max_steps 2: {run} has taken 3 ", "train_file": "resume: {run} was started with training_data "}


@pytest.mark.parametrize("option", OTHER_RUNS)
def test_resume_refuses_another_run(option, files, finished, folders, tmp_path, monkeypatch):
    run = shutil.copytree(finished[0], tmp_path / "run")
    before = tree(run)
    monkeypatch.chdir(folders)
    first, *others = Path(files["train_file"]).read_bytes().splitlines(True)
    Path("other.jsonl").write_bytes(b"".join([*others, first]))  # the same pairs in another order
    options = {**files, **FINISHED, option: OTHER_RUNS[option], "output_dir": run, "resume": True}
    complaint = call(main, *as_options(options)).error
    assert complaint.startswith(SAID.get(option, f"resume: {{run}} was started with {option} ").format(run=run))
    assert tree(run) == before
