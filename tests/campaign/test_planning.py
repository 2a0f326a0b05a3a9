import pytest

from syncguard.campaign import CampaignOptions, Pins
from syncguard.campaign.planning import chosen_checks, chosen_faults, find_sites, grouped, plan
from syncguard.errors import UsageError
from tests.campaign.conftest import Plant
from tests.campaign.planted import IDLE, MUTE, STALE, TAME

SITES = {STALE: [f"site{number}" for number in range(7)], TAME: ["engine"]}


def laid_out(**options: object) -> list[tuple[str, str, str, int]]:
    cells = plan(CampaignOptions(**options), SITES).cells  # type: ignore[arg-type]
    return [(cell.fault, cell.site, cell.stage, cell.seed) for cell in cells]


@pytest.fixture(autouse=True)
def _faults(plant: Plant) -> None:
    plant(STALE, TAME)


def test_three_sites_a_fault_and_late_only_where_asked_for() -> None:
    assert laid_out() == [
        (STALE, site, stage, 0)
        for site in ("site0", "site3", "site6")
        for stage in ("load", "late")
    ] + [(TAME, "engine", "load", 0)]


def test_all_sites_and_seeds() -> None:
    cells = laid_out(all_sites=True, seeds=2, first_seed=5)
    assert len(cells) == 2 * (7 * 2 + 1)
    assert {seed for *_, seed in cells} == {5, 6}


def test_names_sites_and_stages_can_be_chosen() -> None:
    assert laid_out(faults=("*tale",), sites=("site5", "site[12]"), stages=("late",)) == [
        (STALE, site, "late", 0) for site in ("site1", "site2", "site5")
    ]


def test_healthy_runs_count_from_the_first_seed() -> None:
    healthy = plan(CampaignOptions(healthy=2, first_seed=3, no_faults=True), {}).healthy
    assert [spec.seed for spec in healthy] == [3, 4]


def test_a_fault_without_a_site_is_skipped_with_the_reason() -> None:
    laid = plan(CampaignOptions(), {STALE: [], TAME: ["engine"]})
    assert laid.skipped == {STALE: "the stub engine has no site for it"}
    live = plan(CampaignOptions(engine="vllm"), {STALE: [], TAME: ["engine"]})
    assert live.skipped == {STALE: "needs linear_kernel='twin', which the live engine is not"}


def test_nothing_to_run_is_told() -> None:
    with pytest.raises(UsageError, match="nothing to run on engine 'stub': planted-tame: the stub"):
        plan(CampaignOptions(faults=(TAME,)), {TAME: []})
    with pytest.raises(UsageError, match="is armed at --stages late"):
        plan(CampaignOptions(faults=(TAME,), stages=("late",)), SITES)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"faults": ("planted-stall",)}, "did you mean 'planted-stale'"),
        ({"checks": ("exact-prob",)}, "did you mean 'exact-probe'"),
        ({"sites": ("site9",)}, "name a site of these faults: site0, site1"),
    ],
)
def test_unknown_names_are_met_with_near_ones(options: dict[str, object], text: str) -> None:
    chosen = CampaignOptions(**options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=text):
        (chosen_checks(chosen), plan(chosen, SITES))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"engine": "tgi"}, "--engine 'tgi' is not one of stub, sglang, vllm"),
        ({"stages": ("early",)}, "--stages 'early' is not one of load, late"),
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"no_faults": True}, "--no-faults without --healthy"),
    ],
)
def test_options_are_checked(options: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        CampaignOptions(**options)  # type: ignore[arg-type]


def test_sites_are_those_of_the_faults_topology(plant: Plant) -> None:
    plant(STALE, MUTE, IDLE)
    options = CampaignOptions()
    groups = grouped(options, chosen_faults(options))
    found = {name: sites for alike in groups for name, sites in find_sites(options, alike).items()}
    assert found[MUTE] == ["probe_exact"]
    assert "model.layers.1.mlp.down_proj" in found[STALE]
    assert found[IDLE] == ["engine"]


def test_an_engine_that_is_fixed_is_started_whatever_runs_on_it() -> None:
    options = CampaignOptions(engine="vllm", healthy=1, no_faults=True, pins=Pins(ranks=2))
    assert grouped(options, []) == [[]]
    assert grouped(CampaignOptions(engine="vllm", healthy=1), []) == []
    assert grouped(CampaignOptions(pins=Pins(model="stub-moe")), []) == []
