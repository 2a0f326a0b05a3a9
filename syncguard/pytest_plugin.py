"""The pytest plugin: options, markers and fixtures.

pytest imports this module in every run of every project that has syncguard installed, so it
imports neither torch nor anything else that takes time: `syncguard.plugin` does, when a test or an
option asks for it.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from syncguard.plugin.collecting import Collected
    from syncguard.plugin.faulting import ArmedFaults
    from syncguard.plugin.guarding import GuardedSyncs, Sessions
    from syncguard.plugin.options import Options
    from syncguard.plugin.recording import Recorder
    from syncguard.plugin.sides import Sides
    from syncguard.protocols import Engine, Learner

__all__ = ["checked", "recorder", "sessions", "sides"]

_OPTIONS: Final["pytest.StashKey[Options]"] = pytest.StashKey()
_RECORDER: Final["pytest.StashKey[Recorder]"] = pytest.StashKey()
_SESSIONS: Final["pytest.StashKey[Sessions]"] = pytest.StashKey()
_SIDES: Final["pytest.StashKey[Sides]"] = pytest.StashKey()
_COLLECTED: Final["pytest.StashKey[Collected]"] = pytest.StashKey()
_GATHERER: Final["pytest.StashKey[_Gatherer]"] = pytest.StashKey()

_MARKED: Final = ("syncguard", "syncguard_hw")

_MARKERS: Final = {
    "syncguard(conditions)": "the syncguard_guard of this test checks only these conditions, such "
    "as conditions='C1 C3'",
    "syncguard_hw(min_sm)": "skip this test where there is no NVIDIA GPU of this compute "
    "capability or a newer one, such as min_sm=100",
}


class _Gatherer:
    """Keeps what the tests of all workers tell; it is understood at the end of the run."""

    def __init__(self) -> None:
        self.shares: list[tuple[str, str]] = []
        self.skips: list[str] = []
        self.crashes: list[str] = []
        self.interrupted = False

    @property
    def used(self) -> bool:
        return bool(self.shares or self.skips or self.crashes)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        share = getattr(report, "syncguard", None)
        if share:
            self.shares.append((report.nodeid, share))
        skipped = share is not None and report.skipped and not hasattr(report, "wasxfail")
        if skipped and isinstance(report.longrepr, tuple):
            self.skips.append(report.longrepr[2].removeprefix("Skipped: "))

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str) -> None:
        if self.used:
            self.crashes.append(crashitem)

    def pytest_keyboard_interrupt(self) -> None:
        self.interrupted = True


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("syncguard", "syncguard: checks of weight synchronization")
    group.addoption(
        "--syncguard-engine",
        metavar="ENGINE",
        help="stub (default), sglang, vllm, or MODULE:FACTORY of an adapter, which may bring its "
        "learner",
    )
    group.addoption(
        "--syncguard-model",
        metavar="MODEL",
        help="a model that syncguard makes itself, or a checkpoint folder; for the stub its "
        "topology, such as experts=4,ranks=2",
    )
    group.addoption(
        "--syncguard-quantization",
        metavar="NAME",
        help="mxfp8 (default) or none; a stub's is a part of its topology",
    )
    group.addoption(
        "--syncguard-path", metavar="NAME", help="how a sync reaches the engine, if it has a choice"
    )
    group.addoption(
        "--syncguard-seed", metavar="N", type=int, help="of everything random (default 0)"
    )
    group.addoption(
        "--syncguard-report", metavar="PATH", help="write one report of all workers as JSON"
    )
    group.addoption(
        "--syncguard-not-run",
        choices=("fail", "warn"),
        help="what a check that could not run means for a test (default fail)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Describe the markers, check the options, and listen if this is not a worker.

    Raises:
        pytest.UsageError: An option cannot be followed.
    """
    for marker, what in _MARKERS.items():
        config.addinivalue_line("markers", f"{marker}: {what}")
    if _asked_for(config):
        checked(config)
    if not hasattr(config, "workerinput"):
        config.stash[_GATHERER] = gatherer = _Gatherer()
        config.pluginmanager.register(gatherer, "syncguard-gatherer")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say what is checked, if an option was given."""
    return str(checked(config)) if _asked_for(config) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check the arguments of markers; where a worker would break, its tests fail later.

    Raises:
        pytest.UsageError: A marker cannot be followed.
    """
    marked = [item for item in items if any(map(item.get_closest_marker, _MARKED))]
    if marked and not hasattr(config, "workerinput"):
        from syncguard.plugin.markers import check_markers

        check_markers(marked)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU that is not there."""
    if hasattr(item.config, "workerinput") and any(map(item.get_closest_marker, _MARKED)):
        from syncguard.plugin.markers import fail_if_wrong

        fail_if_wrong(item)
    if item.get_closest_marker("syncguard_hw") is not None:
        from syncguard.plugin.markers import skip_without_hardware

        skip_without_hardware(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give what the test found to its report, which travels to the controller."""
    found = item.config.stash.get(_RECORDER, None)
    if found is not None:
        found.describe(item)
    report = yield
    guard = getattr(item, "funcargs", {}).get("syncguard_guard")
    if report.when == "call" and report.passed and guard is not None and not guard.used:
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} takes syncguard_guard and never syncs, so it checks nothing\n"
            "  what to do: call its sync() or judge(), or take syncguard_engine alone"
        )
    if _uses_syncguard(item):
        report.__dict__["syncguard"] = found.drained() if found is not None else ""
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the engine; make and write the report, if this is not a worker."""
    config = session.config
    started = config.stash.get(_SIDES, None)
    if started is not None:
        started.close()
    gatherer = config.stash.get(_GATHERER, None)
    if gatherer is None or not (gatherer.used or config.getoption("syncguard_report")):
        return
    from syncguard.plugin.collecting import collect

    collected = collect(gatherer, checked(config))
    config.stash[_COLLECTED] = collected
    if collected.error:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the table of conditions."""
    collected = config.stash.get(_COLLECTED, None)
    if collected is not None:
        from syncguard.plugin.terminal import show

        show(collected, terminalreporter)


@pytest.fixture(scope="session")
def syncguard_learner(pytestconfig: pytest.Config) -> "Learner":
    """The learner, built once for each worker; define this fixture anew to bring your own."""
    return _made(pytestconfig)[0]


@pytest.fixture(scope="session")
def syncguard_engine(pytestconfig: pytest.Config) -> "Engine":
    """The engine, started once for each worker; define this fixture anew to bring your own."""
    return _made(pytestconfig)[1]


@pytest.fixture
def syncguard_guard(
    request: pytest.FixtureRequest, syncguard_learner: "Learner", syncguard_engine: "Engine"
) -> "GuardedSyncs":
    """Syncs the learner's weights into the engine; a violated condition fails the test."""
    from syncguard.plugin.guarding import GuardedSyncs
    from syncguard.plugin.markers import conditions_of

    config = request.config
    session = sessions(config).of(syncguard_learner, syncguard_engine, checked(config))
    return GuardedSyncs(session, recorder(config), conditions_of(request.node))


@pytest.fixture
def syncguard_faults(syncguard_learner: "Learner", syncguard_engine: "Engine") -> "ArmedFaults":
    """Arms faults of the library in the two sides, to see that something finds them."""
    from syncguard.plugin.faulting import ArmedFaults

    return ArmedFaults(syncguard_learner, syncguard_engine)


def checked(config: pytest.Config) -> "Options":
    """The options of this run.

    Raises:
        pytest.UsageError: One cannot be followed.
    """
    if _OPTIONS not in config.stash:
        from syncguard.plugin.options import checked_options

        config.stash[_OPTIONS] = checked_options(config)
    return config.stash[_OPTIONS]


def sides(config: pytest.Config) -> "Sides":
    """The two sides that the options ask for; made when one is first used."""
    if _SIDES not in config.stash:
        from syncguard.plugin.sides import Sides

        config.stash[_SIDES] = Sides(checked(config))
    return config.stash[_SIDES]


def sessions(config: pytest.Config) -> "Sessions":
    """The syncs of each pair of sides that this process uses."""
    if _SESSIONS not in config.stash:
        from syncguard.plugin.guarding import Sessions

        config.stash[_SESSIONS] = Sessions()
    return config.stash[_SESSIONS]


def recorder(config: pytest.Config) -> "Recorder":
    """Keeps what the tests of this process find, for the report."""
    if _RECORDER not in config.stash:
        from syncguard.plugin.recording import Recorder

        config.stash[_RECORDER] = Recorder()
    return config.stash[_RECORDER]


def _made(config: pytest.Config) -> "tuple[Learner, Engine]":
    """Both sides; what keeps them from being made is the user's to mend, so text is enough."""
    from syncguard.errors import SyncguardError

    try:
        pair = sides(config)
        return pair.learner, pair.engine
    except SyncguardError as error:
        told = str(error)
    pytest.fail(f"syncguard: {told}", pytrace=False)


def _asked_for(config: pytest.Config) -> bool:
    options: dict[str, Any] = vars(config.option)
    return any(
        value is not None for name, value in options.items() if name.startswith("syncguard_")
    )


def _uses_syncguard(item: pytest.Item) -> bool:
    fixtures: list[str] = getattr(item, "fixturenames", [])
    uses = any(name.startswith("syncguard_") for name in fixtures)
    return uses or any(map(item.get_closest_marker, _MARKED))
