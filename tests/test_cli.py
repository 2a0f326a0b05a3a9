import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import syncguard
import syncguard.smoke
from syncguard.errors import UsageError
from syncguard.report import Report
from syncguard.reporting import Listener
from syncguard.smoke import Interrupted, SmokeOptions
from syncguard.verdict import Coverage
from tests.commands import Run
from tests.reports import ERRED, STALE, a_pass, a_report


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[SmokeOptions]:
    """What the command asked of a smoke check that only gives a clean report."""
    return smoke_gives(monkeypatch, a_report())


def smoke_gives(
    monkeypatch: pytest.MonkeyPatch, outcome: Report | BaseException
) -> list[SmokeOptions]:
    asked: list[SmokeOptions] = []

    def run_smoke(options: SmokeOptions, listener: Listener) -> Report:
        asked.append(options)
        listener.step("starting the engine", 0, 1)
        report = outcome.report if isinstance(outcome, Interrupted) else outcome
        for verdict in report.verdicts if isinstance(report, Report) else ():
            listener.verdict(verdict)
        if isinstance(outcome, BaseException):
            raise outcome
        listener.finished(outcome)
        return outcome

    monkeypatch.setattr(syncguard.smoke, "run_smoke", run_smoke)
    return asked


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"syncguard {syncguard.__version__}\n", "")


def test_without_a_command_it_helps(run: Run) -> None:
    ran = run()
    assert ran.code == 2
    assert "smoke" in ran.out + ran.err


def test_smoke_defaults_are_those_of_the_library(run: Run, asked: list[SmokeOptions]) -> None:
    ran = run("smoke")
    assert ran.code == 0
    assert asked == [SmokeOptions()]
    assert "exit code 0: all checks passed" in ran.out
    assert "starting the engine" in ran.err
    assert "starting the engine" not in ran.out


def test_every_option_arrives(run: Run, asked: list[SmokeOptions]) -> None:
    options = "--engine a.b:c --model m --quantization none --path reload --syncs 2"
    more = "--bucket-mib 0.5 --seed 7 --profile production --cold-warm"
    assert run("smoke", *options.split(), *more.split()).code == 0
    assert asked == [
        SmokeOptions(
            engine="a.b:c",
            model="m",
            quantization="none",
            path="reload",
            profile="production",
            cold_warm=True,
            syncs=2,
            bucket_mib=0.5,
            seed=7,
        )
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--quantization", "int4"],
            "'int4' is not one of 'mxfp8', 'modelopt-mxfp8', 'int8-w8a8'",
        ),
        (["--profile", "full"], "'full' is not one of 'smoke', 'production'"),
        (["--syncs", "0"], "'--syncs': Input should be greater than or equal to 1"),
        (["--bucket-mib", "0"], "'--bucket-mib': Input should be greater than"),
        (["--sync", "3"], "--syncs"),
        (["surplus"], "surplus"),
    ],
)
def test_wrong_usage_is_named_and_exits_with_2(
    run: Run, asked: list[SmokeOptions], arguments: list[str], said: str
) -> None:
    ran = run("smoke", *arguments)
    assert ran.code == 2
    assert said in " ".join(ran.err.replace("│", "").split())
    assert asked == []


@pytest.mark.parametrize(
    ("report", "code", "strict_code"),
    [
        (a_report(), 0, 0),
        (a_report(STALE), 1, 1),
        (a_report(ERRED), 3, 3),
        (a_report(a_pass("C2", coverage=Coverage(1, 2))), 0, 3),
    ],
)
def test_the_exit_code_tells_the_outcome(
    run: Run, monkeypatch: pytest.MonkeyPatch, report: Report, code: int, strict_code: int
) -> None:
    smoke_gives(monkeypatch, report)
    ran = run("smoke")
    assert ran.code == code
    assert f"exit code {code}: " in ran.out.splitlines()[-1]
    assert run("smoke", "--strict").code == strict_code


def test_an_error_of_the_user_is_text_and_exit_code_2(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    smoke_gives(monkeypatch, UsageError("model 'x' is not known. Known names: tiny-qwen3"))
    ran = run("smoke", "--report-dir", str(tmp_path / "run"), "--json", str(tmp_path / "r.json"))
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.endswith("syncguard: model 'x' is not known. Known names: tiny-qwen3\n")
    assert "Traceback" not in ran.err
    assert list(tmp_path.iterdir()) == []


def test_any_other_error_is_told_in_a_paragraph_and_exits_with_4(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SYNCGUARD_TRACEBACK", raising=False)
    smoke_gives(monkeypatch, RuntimeError("pipeline group is not initialized"))
    ran = run("smoke")
    assert ran.code == 4
    for said in (
        "internal error: RuntimeError: pipeline group is not initialized",
        "no verdict on the sync",
        "SYNCGUARD_TRACEBACK=1",
        "issue tracker",
    ):
        assert said in ran.err
    assert "Traceback" not in ran.err
    monkeypatch.setenv("SYNCGUARD_TRACEBACK", "1")
    assert "Traceback (most recent call last)" in run("smoke").err


def test_an_interrupted_run_writes_what_it_has_and_exits_with_130(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    smoke_gives(monkeypatch, Interrupted(replace(a_report(STALE), interrupted=True)))
    path, folder = tmp_path / "r.json", tmp_path / "run"
    ran = run("smoke", "--json", str(path), "--report-dir", str(folder))
    assert ran.code == 130
    assert "exit code 130: interrupted" in ran.out
    for file in (path, folder / "report.json"):
        written = json.loads(file.read_text())
        assert written["interrupted"] is True
        assert written["status"] == "fail"


def test_an_interruption_before_the_run_exits_with_130(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    smoke_gives(monkeypatch, KeyboardInterrupt())
    ran = run("smoke")
    assert ran.code == 130
    assert ran.err.endswith("syncguard: interrupted\n")


def test_reports_are_written_where_asked(
    run: Run, asked: list[SmokeOptions], tmp_path: Path
) -> None:
    path, folder = tmp_path / "r.json", tmp_path / "run"
    assert run("smoke", "--json", str(path), "--report-dir", str(folder)).code == 0
    assert path.read_text() == (folder / "report.json").read_text()
    assert Report.from_json(path.read_text()) == a_report()


@pytest.mark.parametrize("option", ["--json", "--report-dir"])
def test_a_path_that_cannot_be_written_is_told_before_the_run(
    run: Run, asked: list[SmokeOptions], tmp_path: Path, option: str
) -> None:
    (tmp_path / "file").touch()
    ran = run("smoke", option, str(tmp_path / "file" / "below"))
    assert ran.code == 2
    assert "cannot write" in ran.err
    assert "What to do" in ran.err
    assert asked == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", ""], "Invalid value for '--model': it is empty: give a value, or leave"),
        (["--fault", ""], "Invalid value for '--fault': it is empty: give a value, or leave"),
        (["--seed", str(2**31)], "be less than or equal to 2147483647"),
    ],
)
def test_values_that_mean_nothing_are_refused(
    run: Run, asked: list[SmokeOptions], arguments: list[str], said: str
) -> None:
    ran = run("smoke", *arguments)
    assert ran.code == 2
    assert said in " ".join(ran.err.replace("│", "").split())
    assert asked == []


def test_two_outputs_cannot_have_one_path(
    run: Run, asked: list[SmokeOptions], tmp_path: Path
) -> None:
    ran = run("smoke", "--json", str(tmp_path / "x"), "--report-dir", str(tmp_path / "." / "x"))
    assert ran.code == 2
    assert "--json and --report-dir both name" in ran.err
    assert asked == []
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_costs_no_verdict(
    run: Run, asked: list[SmokeOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    ran = run("smoke", "--json", str(tmp_path / "r.json"))
    assert ran.code == 2
    assert "passed: C1, C2" in ran.out
    assert "No space left on device. What to do: free some space" in ran.err
    assert list(tmp_path.iterdir()) == []


def python(code: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **options
    )


FAKE = """
import sys, types
from syncguard.errors import SyncguardError
from tests.reports import a_report
fake = types.ModuleType("syncguard.smoke")
fake.Interrupted = type("Interrupted", (SyncguardError,), {})
fake.SmokeOptions = dict
def run_smoke(options, listener):
    report = a_report()
    listener.finished(report)
    return report
fake.run_smoke = run_smoke
sys.modules["syncguard.smoke"] = fake
sys.argv = ["syncguard", "smoke"]
"""


def test_a_reader_that_leaves_changes_no_exit_code() -> None:
    read, write = os.pipe()
    os.close(read)
    ran = subprocess.run(
        [sys.executable, "-c", f"{FAKE}\nfrom syncguard.cli import main; main()"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    assert "BrokenPipe" not in ran.stderr


def test_the_process_does_not_wait_for_an_engines_threads() -> None:
    waiting = "import threading, time; threading.Thread(target=time.sleep, args=[30]).start()"
    ran = python(
        f"{FAKE}\nsys.modules['vllm'] = fake; {waiting}\nfrom syncguard.cli import main; main()"
    )
    assert ran.returncode == 0
    assert ran.stdout.endswith("exit code 0: all checks passed\n")


def test_help_is_quick_and_imports_neither_torch_nor_an_engine() -> None:
    ran = python(
        "import sys, syncguard.cli.commands as cli\n"
        "sys.argv = ['syncguard', 'smoke', '--help']\n"
        "try: cli.main()\n"
        "except SystemExit as end: print(end.code, {'torch', 'vllm', 'numba'} & set(sys.modules))"
    )
    assert ran.stdout.endswith("0 set()\n")
    assert "--quantization" in ran.stdout


def test_python_m_syncguard_is_the_same_command() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "syncguard", "--version"], capture_output=True, text=True, check=True
    )
    assert ran.stdout == f"syncguard {syncguard.__version__}\n"
