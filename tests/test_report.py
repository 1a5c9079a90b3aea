"""The report of all tables and figures, with pieces that take no time."""

import re

import pytest
import report


@pytest.mark.slow
def test_every_table_and_figure_is_made(tmp_path):
    text = report.report(tmp_path / "out").read_text(encoding="utf-8")
    names = ("table1", "translation", "table2", "table3", "table4", "figures", "attention")
    assert re.findall(r"^# (\w+)$", text, re.MULTILINE) == [*names]
