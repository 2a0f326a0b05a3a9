import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from syncguard.campaign.result import CampaignResult, validate
from syncguard.reporting.html import is_page
from tests.campaign.conftest import Plant, plant
from tests.campaign.planted import HANG, IDLE, MUTE, STALE, TAME
from tests.commands import Run

__all__ = ["plant"]

SITE = "model.layers.1.mlp.down_proj"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "syncguard" / "campaigns"


def test_a_campaign_writes_what_it_found(
    run: Run, plant: Plant, tmp_path: Path, state: Path
) -> None:
    plant(STALE, MUTE)
    path, page = tmp_path / "c.json", tmp_path / "c.html"
    ran = run("campaign", "--healthy", "1", "--json", str(path), "--html", str(page))
    assert ran.code == 0, ran.out
    assert "exit code 0: every claimed fault was detected at the first sync" in ran.out
    assert ran.err == ""  # no terminal, no bar
    value = json.loads(path.read_text())
    validate(value)
    assert {cell["stage"] for cell in value["cells"]} == {"load", "late"}
    assert all(cell["detected"] for cell in value["cells"])
    assert value["healthy"]["runs"] == 1
    assert is_page(page.read_text("utf-8"))
    assert list(state.iterdir()) == []


def test_what_is_fixed_is_told_and_repeated(run: Run, plant: Plant, tmp_path: Path) -> None:
    plant(STALE, TAME)
    path = tmp_path / "c.json"
    fixed = ["--model", "stub-moe", "--quantization", "mxfp8"]
    ran = run("campaign", *fixed, "--healthy", "1", "--stages", "load", "--json", str(path))
    assert "model stub-moe | quantization mxfp8" in " ".join(ran.out.split())
    assert f"skipped: {STALE}: needs linear_kernel='twin', which stub-moe is not" in ran.out
    value = json.loads(path.read_text())
    assert value["environment"]["model"] == "stub-moe"
    (cell,) = value["cells"]
    assert cell["replay"].endswith("--model stub-moe --quantization mxfp8")


def test_a_result_that_cannot_be_written_costs_no_cell(
    run: Run, plant: Plant, tmp_path: Path, state: Path
) -> None:
    plant(STALE)
    folder = tmp_path / "gone"
    folder.mkdir()
    arguments = ["campaign", "--healthy", "0", "--json", str(folder / "c.json")]
    written = CampaignResult.write

    def remove_first(self: CampaignResult, path: Path) -> None:
        folder.rmdir()
        written(self, path)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(CampaignResult, "write", remove_first)
        ran = run(*arguments)
    assert ran.code == 2
    assert "cannot write" in ran.err
    assert len(list(state.iterdir())) == 1
    folder.mkdir()
    again = run(*arguments)
    assert again.code == 0
    assert "6 taken from an earlier try" in " ".join(again.out.split())


def test_a_replay_line_repeats_its_cell(run: Run, plant: Plant, tmp_path: Path) -> None:
    import shlex

    plant(STALE)
    path = tmp_path / "c.json"
    options = f"--sites {SITE} --stages late --healthy 0 --checks *probe".split()
    assert run("campaign", *options, "--json", str(path)).code == 0
    (cell,) = json.loads(path.read_text())["cells"]
    command, *replay = shlex.split(cell["replay"])
    assert command == "syncguard"
    assert run(*replay, "--json", str(path)).code == 0
    (again,) = json.loads(path.read_text())["cells"]
    assert {**again, "cost_s": 0} == {**cell, "cost_s": 0}


@pytest.mark.parametrize(("fault", "code"), [(TAME, 1), (IDLE, 4)])
def test_the_exit_code_tells_the_outcome(run: Run, plant: Plant, fault: str, code: int) -> None:
    plant(fault)
    ran = run("campaign", "--healthy", "0", "--checks", "weight-bytes")
    assert ran.code == code, ran.out
    assert f"exit code {code}: " in ran.out.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--faults", "planted-stall"], "--faults 'planted-stall' matches none of 1 names; did"),
        (["--faults", "planted-stall"], "you mean 'planted-stale'?\n  what to do: `syncguard list"),
        (["--checks", "exact-prob"], "did you mean 'exact-probe'"),
        (["--sites", "nowhere"], "--sites 'nowhere' matches none"),
        (["--engine", "tgi"], "--engine 'tgi' is not one of stub, sglang, vllm"),
        (["--stages", "early"], "--stages 'early' is not one of load, late"),
        (["--model", "stub-mo"], "model 'stub-mo' is none of the stub's; did you mean 'stub-moe'"),
        (["--model", ""], "it is empty: give a value"),
        (["--quantization", "int8-w8a8"], "expected: mxfp8, none"),
        (["--tp", "2", "--process", "own"], "the stub does not know --process, --tp"),
        (["--process", "out"], "--process 'out' is not one of in, own, server"),
        (["--engine", "vllm", "--quantization", "mxfp4"], "none of vLLM's; did you mean 'mxfp8'"),
        (["--engine", "vllm", "--model", "tiny-qwen"], "Did you mean 'tiny-qwen3'?"),
        (["--no-faults", "--healthy", "0"], "leaves nothing to run"),
        (["--json", "/nowhere/c.json"], "cannot write '/nowhere/c.json'"),
        (["--html", "/nowhere/c.html"], "cannot write '/nowhere/c.html'"),
        (["--json", "c", "--html", "./c"], "--json and --html both name 'c'; give two paths"),
        (["--model", "stub-mla", "--healthy", "1"], "or run healthy ones alone with --no-faults"),
    ],
)  # fmt: skip
def test_wrong_usage_is_text_and_exits_with_2(
    run: Run, plant: Plant, arguments: list[str], said: str
) -> None:
    plant(STALE)
    ran = run("campaign", *arguments)
    assert ran.code == 2
    assert said in ran.err
    assert ran.out == ""


PLANTED = """
import sys
from tests.campaign.planted import planted
from syncguard.cli import main
sys.argv = ["syncguard", "campaign", *sys.argv[1:]]
with planted(["planted-mute", "planted-hang"]):
    main()
"""
OPTIONS = [
    "--healthy=0", "--seeds=2", "-n1", f"--faults={MUTE}", f"--faults={HANG}",
    "--checks=exact-probe", "--checks=session",
]  # fmt: skip


def begun(session: Path) -> "subprocess.Popen[str]":
    """A campaign of two cells that end and two that hang, when the first two are done."""
    command = [sys.executable, "-c", PLANTED, *OPTIONS, "--session", str(session)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not session.exists() or len(session.read_bytes().splitlines()) < 3:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]


@pytest.mark.slow
def test_a_killed_campaign_goes_on_where_it_was(run: Run, plant: Plant, tmp_path: Path) -> None:
    session = tmp_path / "s.ndjson"
    process = begun(session)
    left = children(process.pid)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{child}").exists() and _alive(child) for child in left):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    plant(MUTE, HANG)
    again = run("campaign", *OPTIONS, "--session", str(session), "--timeout", "1")
    assert again.code == 4, again.err  # two cells hang
    told = " ".join(again.out.split())
    assert "2 taken from an earlier try" in told
    assert "no result within 1 s" in told
    assert not session.exists()


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_is_finished_and_says_how_to_go_on(
    run: Run, plant: Plant, tmp_path: Path, number: int
) -> None:
    plant(MUTE, HANG)
    session = tmp_path / "s.ndjson"
    process = begun(session)
    second = run("campaign", *OPTIONS, "--session", str(session))
    os.killpg(process.pid, number)  # as a terminal does: all processes of the group
    out, err = process.communicate(timeout=60)
    assert second.code == 2
    assert "is in use: another campaign with these options runs" in second.err
    assert process.returncode == 130
    assert out == ""
    assert err == (
        "syncguard: interrupted; what is finished is kept: the same command goes on from there, "
        "with --fresh it begins anew\n"
    )
    assert len(session.read_bytes().splitlines()) == 3


def test_smoke_checks_the_stub(run: Run) -> None:
    ran = run("smoke", "--engine", "stub")
    assert ran.code == 0, ran.out
    assert "model stub-dense" in " ".join(ran.out.split())
    assert "exit code 0: all checks passed" in ran.out


def test_smoke_arms_a_fault(run: Run, plant: Plant, tmp_path: Path) -> None:
    plant(STALE)
    path = tmp_path / "r.json"
    ran = run(
        "smoke", "--engine", "stub", "--syncs", "1", "--fault", f"{STALE}@{SITE}",
        "--json", str(path),
    )  # fmt: skip
    assert ran.code == 1
    report = json.loads(path.read_text())
    failed = {v["condition"] for v in report["verdicts"] if v["status"] == "fail"}
    assert "C3" in failed
    assert report["notes"] == [f"fault {STALE}@{SITE} was armed and fired 1 times"]
    assert "linear_kernel='twin'" in report["environment"]["engine"]["topology"]


def test_smoke_with_a_fault_that_changes_nothing_proves_nothing(run: Run, plant: Plant) -> None:
    plant(IDLE)
    ran = run("smoke", "--engine", "stub", "--syncs", "1", "--fault", IDLE)
    assert ran.code == 4
    assert f"fault {IDLE}@engine fired on nothing, so this run proves nothing" in ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fault", "planted-stall"], "did you mean 'planted-stale'"),
        (["--fault", f"{STALE}@model.layers.9.mlp.down_proj"], f"did you mean '{SITE}'"),
        (["--model", "stub-mo"], "model 'stub-mo' is none of the stub's; did you mean 'stub-moe'?"),
        (["--path", "reload"], "has one path for syncs"),
    ],
)
def test_smoke_names_what_it_does_not_know(
    run: Run, plant: Plant, arguments: list[str], said: str
) -> None:
    plant(STALE)
    ran = run("smoke", "--engine", "stub", *arguments)
    assert ran.code == 2
    assert said in ran.err


def test_every_named_stub_can_be_made() -> None:
    from syncguard.sides import STUB_MODELS, make_engine, make_learner, make_model

    for name in STUB_MODELS:
        model = make_model("stub", name, "mxfp8")
        assert model.name == name
        engine = make_engine("stub", model, "mxfp8", "", 0)
        assert {layer.weight for layer in make_learner(model, "mxfp8", 0).layers()}
        assert engine.name == "stub"


def test_the_readme_names_every_option_and_exit_code() -> None:
    import typer

    from syncguard.cli import app
    from syncguard.reporting.campaign_table import MEANINGS

    text = (Path(__file__).parents[1] / "README.md").read_text()
    command = typer.main.get_command(app).commands["campaign"]  # type: ignore[attr-defined]
    options = [option for each in command.params for option in each.opts]
    assert "--seeds-from" in options
    assert [option for option in options if option not in text] == []
    for code in MEANINGS:
        assert f"\n| {code.value} | " in text
