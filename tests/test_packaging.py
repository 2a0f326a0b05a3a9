import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import resources
from pathlib import Path
from typing import Any, Final

import pytest

import syncguard

ROOT: Final = Path(__file__).parents[1]
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK: Final = (ROOT / "requirements" / "cpu.lock").read_text().splitlines()
LOCKED: Final = dict(line.split("==") for line in LOCK)

IMPORT_SECONDS: Final = 0.3


def python(code: str) -> str:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def test_importing_syncguard_is_quick() -> None:
    # Processor time, and the best of three: the machine may be busy with other tests.
    code = "import time; t = time.process_time(); import syncguard; print(time.process_time() - t)"
    assert min(float(python(code)) for _ in range(3)) < IMPORT_SECONDS


def test_importing_syncguard_imports_no_engine_and_not_even_torch() -> None:
    heavy = "{'torch', 'vllm', 'sglang', 'transformers', 'torchao', 'numba', 'jsonschema', 'rich'}"
    assert python(f"import sys, syncguard; print({heavy} & set(sys.modules))") == "set()"


def test_everything_public_is_there_and_sorted() -> None:
    names = syncguard.__all__
    assert len(names) == len(set(names))
    assert all(hasattr(syncguard, name) for name in names)


def test_the_lock_file_is_complete_pins_everything_and_is_sorted() -> None:
    assert all(re.fullmatch(r"[a-z0-9.-]+==[^\s=]+", line) for line in LOCK)
    assert sorted(LOCK, key=lambda line: line.split("==")[0]) == LOCK
    wanted = [*PROJECT["dependencies"]]
    for extra in ("fast", "vllm-cpu", "torchao", "smollm2", "test", "dev"):
        wanted += PROJECT["optional-dependencies"][extra]
    names = {re.split(r"[=><]", requirement)[0] for requirement in wanted}
    assert names | {"hatchling", "editables"} <= LOCKED.keys()


@pytest.mark.parametrize("name", ["torchvision", "torchaudio", "torchcodec"])
def test_the_lock_file_leaves_out_what_does_not_import_beside_a_cpu_torch(name: str) -> None:
    assert name not in LOCKED


def test_the_extra_for_vllm_is_the_locked_version() -> None:
    (pinned,) = PROJECT["optional-dependencies"]["vllm-cpu"]
    assert pinned == f"vllm-cpu=={LOCKED['vllm-cpu']}"


@pytest.mark.parametrize(
    "target",
    [*PROJECT["scripts"].values(), *PROJECT["entry-points"]["vllm.general_plugins"].values()],
)
def test_entry_points_lead_somewhere(target: str) -> None:
    module, _, name = target.partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_the_wheel_holds_what_the_package_needs(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"syncguard/schemas/report-1.json", "syncguard/py.typed"} <= set(names)
    assert not [name for name in names if name.startswith("tests")]
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_schema_is_reachable_as_package_data() -> None:
    assert resources.files("syncguard").joinpath("schemas/report-1.json").is_file()


def test_readme_opens_with_the_two_commands() -> None:
    opening = (ROOT / "README.md").read_text()[:300]
    assert opening.index("make smoke") < opening.index("make test")


def test_readme_names_every_exit_code_and_condition() -> None:
    text = (ROOT / "README.md").read_text()
    for code in syncguard.ExitCode:
        assert re.search(rf"^\| {code.value} \| {re.escape(code.meaning)}", text, re.MULTILINE)
    for condition in syncguard.CORE_CONDITIONS:
        assert f"| {condition.id} | {condition.name} |" in text


def test_readme_names_every_option_of_smoke() -> None:
    text = (ROOT / "README.md").read_text()
    ran = python(
        "import typer; from syncguard.cli import app; "
        "smoke = typer.main.get_command(app).commands['smoke']; "
        "print(*(option for each in smoke.params for option in each.opts))"
    )
    assert "--quantization" in ran.split()
    assert [option for option in ran.split() if option not in text] == []


def test_ci_is_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert script.read_text().splitlines()[-1] == "exec make test"
