"""The marker for tests that need a GPU."""

from collections.abc import Callable

import pytest

from tests.plugin.conftest import Running

NEEDS = """
    import pytest

    @pytest.mark.syncguard_hw(min_sm=100)
    def test_kernel():
        pass

    @pytest.mark.syncguard_hw(min_sm=90)
    def test_other_kernel():
        pass
"""


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def give(*capabilities: tuple[int, int]) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: bool(capabilities))
        monkeypatch.setattr("torch.cuda.device_count", lambda: len(capabilities))
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capabilities[device])

    return give


def test_without_a_gpu_tests_are_skipped_and_counted(
    running: Running, gpus: Callable[..., None], pytester: pytest.Pytester
) -> None:
    gpus()
    result = running(NEEDS, "--syncguard-report=report.json")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(
        ["skipped 1: needs an NVIDIA GPU of SM 100 or newer: there is none"]
    )
    assert "there is none" in (pytester.path / "report.json").read_text()


def test_an_older_gpu_is_not_enough(running: Running, gpus: Callable[..., None]) -> None:
    gpus((8, 0), (9, 0))
    result = running(NEEDS)
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["skipped 1: needs an NVIDIA GPU of SM 100 or newer: there is SM 90"]
    )


def test_the_newest_gpu_counts(running: Running, gpus: Callable[..., None]) -> None:
    gpus((12, 0), (8, 9))
    running(NEEDS).assert_outcomes(passed=2)
