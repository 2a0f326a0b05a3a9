"""The Makefile's set-up, with a python that only writes down what it is asked."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]

FAKE_PYTHON: Final = """#!/bin/sh
echo "$*" >> "$LOG"
case "$*" in
  "-m venv .venv")
    mkdir -p .venv/bin && cp "$0" .venv/bin/python
    printf '#!/bin/sh\\necho ran syncguard "$@"\\n' > .venv/bin/syncguard
    chmod +x .venv/bin/syncguard ;;
  *"-r requirements/cpu.lock"*) [ -z "$PIP_FAILS" ] || exit 1; touch .venv/half ;;
  *"import torch"*) [ -z "$CUDA_BUILD" ] || [ -e .venv/cpu_torch ] ;;
  *download.pytorch.org*) touch .venv/cpu_torch ;;
esac
"""


class House:
    """A copy of the files that the set-up depends on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copy(ROOT / "Makefile", folder)
        (folder / "pyproject.toml").touch()
        (folder / "requirements").mkdir()
        (folder / "requirements" / "cpu.lock").write_text("rich==1\ntorch==2.13.0\n")
        (folder / "python").write_text(FAKE_PYTHON)
        (folder / "python").chmod(0o755)

    def make(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "log").write_text("")
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return subprocess.run(
            ["make", *arguments, f"PYTHON={self.folder}/python"],  # noqa: S607 - whichever is first
            cwd=self.folder,
            env={**inherited, "LOG": str(self.folder / "log"), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def log(self) -> list[str]:
        """What python was asked in the last call."""
        return (self.folder / "log").read_text().splitlines()

    @property
    def installed(self) -> bool:
        return (self.folder / ".venv" / ".installed").exists()


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_smoke_makes_the_environment_and_runs(house: House) -> None:
    ran = house.make("smoke", "ARGS=--seed 3")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("ran syncguard smoke --seed 3\n")
    (install,) = (line for line in house.log if "requirements/cpu.lock" in line)
    assert "--no-deps" in install
    assert "--no-deps --no-build-isolation -e ." in house.log[-1]
    assert "download.pytorch.org" not in "".join(house.log)


def test_there_is_nothing_to_do_the_second_time(house: House) -> None:
    house.make("install")
    assert house.make("smoke").stdout == "ran syncguard smoke\n"
    assert house.make("smoke-sglang").stdout == "ran syncguard smoke --engine sglang\n"
    assert house.log == []


@pytest.mark.parametrize("name", ["pyproject.toml", "requirements/cpu.lock"])
def test_a_changed_requirement_installs_again_into_the_same_environment(
    house: House, name: str
) -> None:
    house.make("install")
    later = (house.folder / ".venv" / ".installed").stat().st_mtime + 5
    os.utime(house.folder / name, (later, later))
    assert "removing" not in house.make("install").stdout
    assert any("requirements/cpu.lock" in line for line in house.log)


def test_an_installation_that_was_cut_short_starts_anew(house: House) -> None:
    assert house.make("install", PIP_FAILS="1").returncode != 0
    assert not house.installed
    (house.folder / ".venv" / "half").touch()
    ran = house.make("install")
    assert "removing an unfinished .venv" in ran.stdout
    assert house.installed
    assert not (house.folder / ".venv" / ".installing").exists()


def test_a_torch_that_does_not_import_is_replaced_by_the_cpu_build(house: House) -> None:
    ran = house.make("install", CUDA_BUILD="1")
    assert ran.returncode == 0, ran.stderr
    (reinstall,) = (line for line in house.log if "download.pytorch.org" in line)
    assert reinstall.endswith(
        "--no-deps --force-reinstall --index-url https://download.pytorch.org/whl/cpu torch==2.13.0"
    )
    assert house.installed


def test_a_python_that_is_too_old_is_named(house: House) -> None:
    fake = house.folder / "python"
    fake.write_text(FAKE_PYTHON.replace("case", 'case "$*" in *version_info*) exit 1;; esac\ncase'))
    ran = house.make("install")
    assert ran.returncode != 0
    assert "syncguard needs Python 3.11 or newer: make PYTHON=" in ran.stderr
