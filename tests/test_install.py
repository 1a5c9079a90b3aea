"""What pip installs works in a folder where there is nothing else."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from helpers import ROOT, environment, make_tiny, make_tokenizer, save_folder

LOCATE = """
from importlib.resources import files
import modeling_vanilla
for name in ("py.typed", "hub/model_card.md", "visualization/attention.html"):
    assert files("modeling_vanilla").joinpath(name).is_file(), name
print(modeling_vanilla.__file__)
"""


@pytest.mark.slow
def test_an_installed_package_gives_the_command(tmp_path):
    def run(*command, cwd=tmp_path, stdin=""):
        variables = {**environment(tmp_path), "PYTHONPATH": ""}
        how = {"input": stdin, "stdout": subprocess.PIPE, "text": True, "check": True, "timeout": 300}
        return subprocess.run([*map(str, command)], cwd=cwd, env=variables, **how).stdout

    run("git", "clone", "--quiet", ROOT, tmp_path / "source")
    build = "from setuptools import build_meta; build_meta.build_wheel('../dist')"
    run(sys.executable, "-c", build, cwd=tmp_path / "source")
    (wheel,) = (tmp_path / "dist").iterdir()
    venv.create(tmp_path / "venv", with_pip=True)
    python, vanilla = (tmp_path / "venv" / "bin" / name for name in ("python", "vanilla"))
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (own / "others.pth").write_text(sysconfig.get_path("purelib"))  # the libraries of the tests, behind its own
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel)
    assert Path(run(python, "-c", LOCATE).strip()).parent == own / "modeling_vanilla"
    tokenizer = make_tokenizer(["a dog runs"])
    model = save_folder(tmp_path / "model", make_tiny(len(tokenizer)), tokenizer)
    assert run(vanilla, "translate", model, stdin="a dog\n").count("\n") == 1
    assert "usage: vanilla train" in run(python, "-m", "modeling_vanilla", "train", "--help")
