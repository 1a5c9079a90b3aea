"""Table 4 from end to end on toy trees, and one line for everything that can be wrong with its input."""

import json
import re
import subprocess
import sys
from pathlib import Path

import parsing as script
import pytest
from toy_trees import toy_treebank
from transformers import AutoTokenizer
from trees import Node, Word, bracketed, is_well_formed, linearise, words

ROOT = Path(__file__).parents[1]
TINY = {
    "--d_model": 16,
    "--encoder_layers": 1,
    "--decoder_layers": 1,
    "--encoder_ffn_dim": 32,
    "--decoder_ffn_dim": 32,
    "--vocab_size": 400,
    "--max_steps": 2,
    "--tokens_per_update": 100,
    "--tokens_per_batch": 200,
    "--warmup_steps": 2,
    "--checkpoint_steps": 1,
    "--sustained_tflops": 1,
    "--num_beams": 2,
    "--max_extra_tokens": 3,
}


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def treebank(tmp_path):
    """Five files of toy trees, one behind the other as in the treebank."""
    path = tmp_path / "toy.mrg"
    path.write_text(penn(toy_treebank(files=5, sentences=4)), encoding="utf-8")
    return path


def penn(files):
    return "".join("\n" + "".join(f"( {bracketed(tree)} )\n" for tree in trees) + "\n" for trees in files)


@pytest.fixture
def main(monkeypatch, capsys):
    """main() with these options: its exit code, its output and the last line of its complaints."""

    def call(**options):
        given = TINY | {f"--{name}": value for name, value in options.items()}
        flags = [word for name, value in given.items() for word in ([name] if value is True else [name, str(value)])]
        monkeypatch.setattr(sys, "argv", ["parsing.py", *flags])
        capsys.readouterr()
        code = 0
        try:
            script.main()
        except SystemExit as exit:
            code = exit.code
        printed = capsys.readouterr()
        return code, printed.out, (printed.err.splitlines() or [""])[-1]

    return call


def everything(folder):
    """Every file below a folder with its bytes."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# The way from trees to figures


def test_a_run_leaves_figures_table_and_parses(main, treebank, tmp_path):
    run = tmp_path / "run"
    code, printed, complaint = main(trees=treebank, output_dir=run)
    assert code == 0, complaint
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert results["training"]["steps"] == 2
    assert results["search"] == {"num_beams": 2, "length_penalty": 0.3, "max_extra_tokens": 3}
    assert results["train_sentences"] == 12
    table = (run / "table.md").read_text(encoding="utf-8")
    assert printed.strip() == table.strip()
    for split, name, trees in (("validation", "development", 3), ("test", "test", 4)):
        gold = toy_treebank(files=5, sentences=4)[trees]
        assert (run / "parses" / f"{split}.gold").read_text().splitlines() == [bracketed(tree) for tree in gold]
        for kind in ("parsed", "baseline"):
            texts = (run / "parses" / f"{split}.{kind}").read_text().splitlines()
            # Tags and words are the gold tree's, whatever has been written above them.
            leaves = re.compile(r"\([^()]+\)")
            assert [leaves.findall(text) for text in texts] == [leaves.findall(bracketed(tree)) for tree in gold]
        assert (results[split]["sentences"], results[split]["errors"]) == (4, 0)
        assert f"| **this run** | 12 sentences | {name}, 4 sentences | {results[split]['f1']:.1f} |" in table
        assert f"| {name}, 4 sentences | {results[split]['baseline']['f1']:.1f} |" in table
    saved = json.loads((run / "training" / "model" / "generation_config.json").read_text(encoding="utf-8"))
    assert (saved["num_beams"], saved["length_penalty"], saved["max_extra_tokens"]) == (2, 0.3, 3)


@pytest.mark.parametrize("writes, f1, well_formed", [("gold", 100, 100), ("nothing", 0, 0), ("half", None, 0)])
def test_figures_are_of_what_the_model_writes(writes, f1, well_formed, main, treebank, tmp_path, monkeypatch):
    asked = []
    gold = {script.source(tree): linearise(tree) for trees in toy_treebank(files=5, sentences=4) for tree in trees}

    def write(model, tokenizer, sentences, show_progress):
        asked.append(model.generation_config.to_dict())
        kept = {"gold": slice(None), "nothing": slice(0), "half": slice(-1)}[writes]
        return [" ".join(gold[sentence][kept]) for sentence in sentences]

    monkeypatch.setattr(script, "translate", write)
    code, _, complaint = main(trees=treebank, output_dir=tmp_path / "run", num_beams=21, max_extra_tokens=300)
    assert code == 0, complaint
    results = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    for split in ("validation", "test"):
        # An output that lacks its last bracket is not well-formed, and repaired without loss.
        assert results[split]["f1"] == (100 if f1 is None else f1)
        assert results[split]["well_formed"] == well_formed
    assert all((one["num_beams"], one["length_penalty"], one["max_extra_tokens"]) == (21, 0.3, 300) for one in asked)


def test_the_paper_s_search_is_the_default():
    options = script.ParsingOptions()
    assert (options.num_beams, options.length_penalty, options.max_extra_tokens) == (21, 0.3, 300)


def test_the_table_holds_table_4():
    assert {(kind, f1) for name, kind, f1 in script.PAPER if "Transformer" in name} == {
        ("WSJ only, discriminative", 91.3),
        ("semi-supervised", 92.7),
    }
    assert [f1 for *_, f1 in script.PAPER] == [88.3, 90.4, 90.4, 91.7, 91.3, 91.3, 91.3, 92.1, 92.1, 92.7, 93.0, 93.3]


# Data


@pytest.mark.parametrize("sizes", [[1, 1, 1], [50, 1, 1], [1, 1, 50], [1, 50, 1, 1], [7] * 10, [9, 2] * 40])
def test_no_file_is_in_two_splits_and_all_are_in_one(sizes):
    files = [[(number, index) for index in range(size)] for number, size in enumerate(sizes)]
    splits = script.split_files(files)
    assert list(splits) == ["train", "validation", "test"]
    assert [tree for trees in splits.values() for tree in trees] == [tree for trees in files for tree in trees]
    numbers = [{number for number, _ in trees} for trees in splits.values()]
    assert all(numbers) and sum(map(len, numbers)) == len(files)


def test_constituents_are_pairs_of_their_own_once():
    john, treasurer = Word("NNP", "John"), Word("NN", "treasurer")
    phrase = Node("NP", (Node("NP", (john,)), Node("NP", (Word("DT", "a"), treasurer))))
    trees = [Node("S", (phrase, phrase)), Node("FRAG", (treasurer,)), phrase]
    assert [pair["en"] for pair in script.training_pairs(trees, constituents=True)] == [
        "John a treasurer John a treasurer", "John a treasurer", "a treasurer", "treasurer", "John a treasurer",
    ]  # fmt: skip
    alone = list(script.training_pairs(trees, constituents=False))
    assert alone == [{"en": script.source(tree), "tree": script.target(tree)} for tree in trees]


def test_about_a_tenth_is_for_testing():
    splits = script.split_files([[None] * 10] * 100)
    assert {name: len(trees) for name, trees in splits.items()} == {"train": 800, "validation": 100, "test": 100}


def test_labels_are_whole_tokens_and_nothing_is_lost(tmp_path):
    trees = [tree for trees in toy_treebank(files=4) for tree in trees]
    script.parsing_tokenizer(trees, 400).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for tree in trees:
        ids = tokenizer(text_target=script.target(tree)).input_ids
        pieces = sum(len(tokenizer(word, add_special_tokens=False).input_ids) for word in words(tree))
        brackets = [token for token in linearise(tree) if token[0] in "()"]
        assert len(ids) == len(brackets) + pieces + 1
        tokens = tokenizer.decode(ids, skip_special_tokens=True).split()
        assert is_well_formed(tokens, words(tree)) and tokens == linearise(tree)
        text = script.source(tree)
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


def test_splits_that_are_given(main, treebank, tmp_path):
    paths = [tmp_path / f"{split}.mrg" for split in ("train", "validation", "test")]
    files = toy_treebank(files=5, sentences=4)
    for path, part in zip(paths, ([files[0], files[1]], files[2:4], files[4:]), strict=True):
        path.write_text(penn(part))
    options = dict(zip(("train_trees", "validation_trees", "test_trees"), map(str, paths), strict=True))
    splits = script.read_splits(script.ParsingOptions(**{name: [path] for name, path in options.items()}))
    assert splits == {"train": files[0] + files[1], "validation": files[2] + files[3], "test": files[4]}


# Resuming


def test_a_run_goes_on_where_it_stopped(main, treebank, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(trees=treebank, output_dir=whole, max_steps=3)[0] == 0
    assert main(trees=treebank, output_dir=parts)[0] == 0
    assert main(trees=treebank, output_dir=parts, max_steps=3, resume=True)[0] == 0
    for name in ("training/model/model.safetensors", "parses/test.output", "parses/test.parsed"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()


def test_a_run_that_stopped_before_training_goes_on(main, treebank, tmp_path):
    run = tmp_path / "run"
    options = script.ParsingOptions(trees=[str(treebank)])
    script.prepare(run, script.read_splits(options), 400, options)
    assert main(trees=treebank, output_dir=run, resume=True)[0] == 0
    assert (run / "results.json").is_file()


def test_resuming_on_other_trees_is_refused(main, treebank, tmp_path):
    run = tmp_path / "run"
    assert main(trees=treebank, output_dir=run)[0] == 0
    before = everything(run)
    other = tmp_path / "other.mrg"
    other.write_text(treebank.read_text().replace("(NN ", "(NNS ", 1))
    code, _, complaint = main(trees=other, output_dir=run, resume=True)
    assert code == 2
    assert re.fullmatch(r"error: resume: \S+run was started with trees \w+, not \w+", complaint)
    assert everything(run) == before


# Bad input


@pytest.mark.parametrize(
    "text, says",
    [
        ("\n( (S (NN a)\n", "toy.mrg, line 2: the tree that starts here is not closed"),
        ("( (S (NN a)) )\n( )\n", "toy.mrg, line 2: a bracket has nothing in it"),
        ("( (S (-NONE- *)) )\n", "toy.mrg, line 1: the tree has no words"),
        ("1\tJohn\t_\tNNP\n", "toy.mrg, line 1: '1' is in no bracket"),
        ("( (S (NN a)) )\n", "trees: 1 files of trees cannot be split into three"),
        ("", "toy.mrg: there are no trees in it"),
    ],
)
def test_bad_trees_are_one_line(text, says, main, treebank, tmp_path):
    treebank.write_text(text)
    code, _, complaint = main(trees=treebank, output_dir=tmp_path / "run")
    assert code == 2
    assert complaint.startswith("error: ") and says in complaint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "options, says",
    [
        ({"trees": "gone.mrg"}, "gone.mrg: cannot be read"),
        ({"train_trees": "toy.mrg"}, "train_trees is given beside trees"),
        ({"num_beams": 0}, "num_beams must be at least 1, not 0"),
        ({"max_extra_tokens": -1}, "max_extra_tokens must be at least 0, not -1"),
        ({"vocab_size": 270}, "vocab_size must be at least 2"),
        ({"d_model": 18, "encoder_attention_heads": 4}, "d_model"),
        ({"resume": True}, "holds no parsing run"),
    ],
)
def test_bad_options_are_one_line(options, says, main, treebank, tmp_path):
    code, _, complaint = main(**{"trees": treebank, "output_dir": tmp_path / "run", **options})
    assert code == 2
    assert complaint.startswith("error: ") and says in complaint
    assert not (tmp_path / "run").exists()


def test_a_folder_that_holds_something_is_left_alone(main, treebank, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").touch()
    code, _, complaint = main(trees=treebank, output_dir=tmp_path / "run")
    assert code == 2
    assert complaint.startswith("error: output_dir: ")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]


def test_a_split_alone_is_refused():
    with pytest.raises(ValueError, match="test_trees is given without the others"):
        script.ParsingOptions(test_trees=["a.mrg"])


@pytest.mark.parametrize("scale", ["smoke", "sample", "paper"])
def test_each_scale_makes_a_model(scale, monkeypatch, tmp_path):
    """What it sets are options that exist, and what is given goes before it."""
    passed = []
    monkeypatch.setattr(script, "reproduce", lambda *given: passed.extend(given))
    (tmp_path / "table.md").write_text("")
    arguments = ["parsing.py", "--scale", scale, "--output_dir", str(tmp_path), "--warmup_steps", "7"]
    monkeypatch.setattr(sys, "argv", arguments)
    script.main()
    options, training, model = passed
    assert (options.scale, training.warmup_steps) == (scale, 7)
    for name, value in script.SCALES[scale].items():
        if name != "warmup_steps":
            taken = [vars(part)[name] for part in (options, training) if name in vars(part)]
            assert (taken or [model[name]]) == [value]


def test_help_of_the_script(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "reproduce" / "parsing.py", "--help"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: parsing.py")
    assert list(tmp_path.iterdir()) == []
