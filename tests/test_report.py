"""The report of all tables and figures, with pieces that take no time."""

import re

import pytest
import report

PIECE = """
import sys
from pathlib import Path
folder = Path(sys.argv[sys.argv.index("--output_dir") + 1])
folder.mkdir()
(folder / "table.md").write_text("# A table\\n\\n| a |\\n|---|\\n| 1 |\\n")
(folder / "curve.png").touch()
with (folder.parent / "calls").open("a") as calls:
    print(folder.name, file=calls)
"""


@pytest.fixture
def make_report(tmp_path, monkeypatch):
    """Write the report of these pieces, script by name, to tmp_path / "out". Returns its text."""

    def make_report(**scripts: str) -> str:
        commands = {name: tmp_path / f"{name}.py" for name in scripts}
        for name, script in scripts.items():
            commands[name].write_text(script)
        monkeypatch.setattr(report, "pieces", lambda output: [(name, [path]) for name, path in commands.items()])
        return report.report(tmp_path / "out").read_text(encoding="utf-8")

    return make_report


def test_a_report_holds_tables_and_pictures_and_continues_where_it_stopped(make_report, tmp_path):
    with pytest.raises(ValueError, match=r"second ended with exit code 1: the disk is full \(see .+second.log\)"):
        make_report(first=PIECE, second=f"{PIECE}raise SystemExit('the disk is full')")
    assert not (tmp_path / "out" / "report.md").exists()
    text = make_report(first=PIECE, second=PIECE, silent="")
    assert (tmp_path / "out" / "calls").read_text().split() == ["first", "second", "second"]
    for name in ("first", "second"):
        assert f"# {name}\n\n## A table\n\n| a |" in text and f"![curve]({name}/curve.png)" in text
    assert "silent" not in text


@pytest.mark.slow
def test_every_table_and_figure_is_made(tmp_path):
    text = report.report(tmp_path / "out").read_text(encoding="utf-8")
    names = ("table1", "translation", "table2", "table3", "table4", "figures", "attention")
    assert re.findall(r"^# (\w+)$", text, re.MULTILINE) == [*names]
