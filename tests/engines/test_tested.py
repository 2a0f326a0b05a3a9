import re
from pathlib import Path

import pytest

from syncguard.engines.tested import TESTED, untested


@pytest.mark.parametrize("engine", TESTED)
def test_both_ends_of_the_range_are_tested(engine: str) -> None:
    assert [untested(engine, version) for version in TESTED[engine]] == ["", ""]


@pytest.mark.parametrize("version", ["0.30.0", "0.31.0+cpu", "0.32", "0.29.0.post1"])
def test_versions_between_need_no_note(version: str) -> None:
    assert untested("vllm", version if version != "0.32" else "0.31.9") == ""


@pytest.mark.parametrize("version", ["0.28.9", "0.32.1", "0.33.0rc1", "1.0", "", "dev"])
def test_a_version_outside_is_told_with_the_range(version: str) -> None:
    told = untested("vllm", version)
    assert told.startswith(f"vllm {version or '(no version)'} is outside the tested range, ")
    assert "0.29.0 to 0.32.0" in told


def test_an_engine_of_somebody_else_has_no_range() -> None:
    assert untested("mine", "0.1") == ""


def test_the_matrix_runs_both_ends() -> None:
    text = Path(__file__).parents[2].joinpath("noxfile.py").read_text("utf-8")
    (line,) = re.findall(r"^VERSIONS = (.*)$", text, re.MULTILINE)
    versions = re.findall(r'"([\d.]+)"', line)
    assert (versions[0], versions[-1]) == TESTED["vllm"]
