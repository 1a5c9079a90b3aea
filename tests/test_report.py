"""The report of all tables and figures, with pieces that take no time."""

from pathlib import Path

import pytest
import report

PIECE = """
import sys
from pathlib import Path
folder = Path(sys.argv[sys.argv.index("--output_dir") + 1])
folder.mkdir()
(folder / "table.md").write_text("# A table\\n\\n| a |\\n|---|\\n| 1 |\\n")
(folder / "curve.png").touch()
(folder / "page.html").touch()
with (folder.parent / "calls").open("a") as calls:
    print(folder.name, file=calls)
"""
FAILS = "print('nearly'); raise SystemExit('the disk is full')"


@pytest.fixture
def pieces(tmp_path, monkeypatch):
    """Set the pieces: name, and the script that is run for it."""

    def set_pieces(**scripts: str) -> None:
        chosen = []
        for name, script in scripts.items():
            (tmp_path / f"{name}.py").write_text(script)
            chosen.append((name, [tmp_path / f"{name}.py"]))
        monkeypatch.setattr(report, "pieces", lambda output: chosen)

    return set_pieces


def test_a_report_holds_tables_pictures_and_pages_and_goes_on_where_it_stopped(pieces, tmp_path):
    output = tmp_path / "out"
    pieces(first=PIECE, second=FAILS)
    with pytest.raises(ValueError, match=r"second.py ended with exit code 1: the disk is full \(see .+second.log\)"):
        report.report(output)
    assert not (output / "report.md").exists()
    pieces(first=PIECE, second=PIECE, silent="")
    text = report.report(output).read_text(encoding="utf-8")
    assert (output / "calls").read_text().split() == ["first", "second"]
    for name in ("first", "second"):
        assert f"# {name}\n\n## A table\n\n| a |" in text
        assert f"![curve]({name}/curve.png)" in text and f"[page.html]({name}/page.html)" in text
    assert "silent" not in text


def test_an_interrupted_piece_is_begun_anew(pieces, tmp_path):
    output = tmp_path / "out"
    (output / "first").mkdir(parents=True)
    (output / "first" / "half.md").write_text("half")
    (output / "first.log").touch()
    pieces(first=PIECE)
    assert "half" not in report.report(output).read_text(encoding="utf-8")


def test_what_is_no_piece_is_left_alone(pieces, tmp_path):
    output = tmp_path / "out"
    (output / "first").mkdir(parents=True)
    (output / "first" / "thesis.tex").touch()
    pieces(first=PIECE)
    with pytest.raises(ValueError, match="first holds something else"):
        report.report(output)
    assert (output / "first" / "thesis.tex").exists()


def test_every_piece_is_a_script_that_is_there(tmp_path):
    for _, (script, *_) in report.pieces(tmp_path):
        assert Path(script).is_file()
