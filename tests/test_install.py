"""What pip installs, from a wheel and from a source distribution, works in a folder where there is nothing else."""

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from helpers import ROOT, environment, make_tiny, make_tokenizer, save_folder

BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
LOCATE = """
from importlib.resources import files
import modeling_vanilla
for name in ("py.typed", "hub/model_card.md", "hub/static/index.html", "visualization/attention.html"):
    assert files("modeling_vanilla").joinpath(name).is_file(), name
print(modeling_vanilla.__file__)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["build_wheel", "build_sdist"])
def test_an_installed_package_gives_the_command(kind, tmp_path):
    def run(*command, cwd=tmp_path, stdin=""):
        variables = {**environment(tmp_path), "PYTHONPATH": ""}
        how = {"input": stdin, "stdout": subprocess.PIPE, "text": True, "check": True, "timeout": 300}
        return subprocess.run([*map(str, command)], cwd=cwd, env=variables, **how).stdout

    source = tmp_path / "source"
    run("git", "clone", "--quiet", ROOT, source)
    if kind == "build_sdist":
        run(sys.executable, "-c", BUILD, kind, tmp_path / "sdist", cwd=source)
        (archive,) = (tmp_path / "sdist").iterdir()
        shutil.unpack_archive(archive, tmp_path / "unpacked", filter="data")
        (source,) = (tmp_path / "unpacked").iterdir()
    run(sys.executable, "-c", BUILD, "build_wheel", tmp_path / "dist", cwd=source)
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
