"""Wrong usage ends the run at its start, with a text that says what to do."""

import pytest

from tests.plugin.conftest import Running

NOTHING = """
    def test_nothing():
        pass
"""


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (
            "engine=vlm",
            [
                "*unknown engine 'vlm'; did you mean vllm?",
                "*expected: stub, *vllm, or MODULE:FACTORY*",
            ],
        ),
        ("engine=stubb", ["*unknown engine 'stubb'; did you mean stub?"]),
        (
            "engine=no_such_module:make",
            [
                "*cannot be imported",
                "*No module named 'no_such_module'",
                "*what to do: *pythonpath*",
            ],
        ),
        ("engine=json:make", ["*cannot be imported", "*has no attribute 'make'"]),
        (
            "model=expert=4",
            [
                "*the stub's topology has no 'expert=4'; did you mean 'experts'?",
                "*fields: layers, *",
            ],
        ),
        ("model=stub-mo", ["*the stub's topology has no 'stub-mo'; did you mean 'stub-moe'?"]),
        ("model=experts=many", ["*experts must be a whole number, got 'many'"]),
        ("model=tied=perhaps", ["*tied must be true or false, got 'perhaps'"]),
        ("model=hidden=33", ["*hidden must be a multiple of 32*"]),
        ("report=no/such/folder/r.json", ["*cannot write*no/such/folder/r.json*What to do: *"]),
    ],
)
def test_usage_errors(running: Running, option: str, told: list[str]) -> None:
    result = running(NOTHING, f"--syncguard-{option}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: syncguard: {told[0]}", *told[1:]])


def test_a_foreign_file_is_not_overwritten(running: Running, pytester: pytest.Pytester) -> None:
    kept = pytester.path / "notes.json"
    kept.write_text('{"mine": 1}')
    result = running(NOTHING, "--syncguard-report=notes.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*will not overwrite*was not written by syncguard*"])
    assert kept.read_text() == '{"mine": 1}'


def test_not_run_means_fail_or_warn(running: Running) -> None:
    result = running(NOTHING, "--syncguard-not-run=ignore")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*invalid choice: 'ignore'*"])


@pytest.mark.parametrize(
    ("marker", "told"),
    [
        (
            "syncguard(conditions='C33')",
            "marker syncguard: there is no condition 'C33'; did you mean C3?*",
        ),
        ("syncguard('c1')", "*there is no condition 'c1'; did you mean C1?*Known: C1, C2, *"),
        ("syncguard(condition='C1')", "marker syncguard takes one argument, conditions='C1 C3'"),
        ("syncguard_hw()", "*such as min_sm=100 for 10.0, got None"),
        ("syncguard_hw(min_sm='100')", "*such as min_sm=100 for 10.0, got '100'"),
        ("syncguard_hw(min_sm=9)", "*such as min_sm=100 for 10.0, got 9"),
    ],
)
def test_wrong_markers(running: Running, marker: str, told: str) -> None:
    result = running(f"""
    import pytest

    @pytest.mark.{marker}
    def test_nothing():
        pass
    """)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: test_it.py::test_nothing: {told}"])


def test_a_wrong_marker_fails_its_test_where_a_worker_collects(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.syncguard(conditions="C33")
        def test_wrong():
            pass

        def test_right():
            pass
        """
    )
    result = pytester.runpytest_subprocess("-n1", "-pno:randomly")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*marker syncguard: there is no condition 'C33'*"])
    assert "INTERNALERROR" not in result.stdout.str()


def test_the_head_of_the_run_says_what_is_checked(running: Running) -> None:
    result = running(NOTHING, "--syncguard-model=experts=4", "--syncguard-seed=7")
    result.stdout.fnmatch_lines(["syncguard: engine stub of experts=4, seed 7"])


def test_a_run_that_asks_for_nothing_hears_nothing(running: Running) -> None:
    assert "syncguard:" not in running(NOTHING).stdout.str()
