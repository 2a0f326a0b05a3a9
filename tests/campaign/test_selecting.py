import pytest

from syncguard.campaign.selecting import matching, select
from syncguard.errors import UsageError

SITES = ["q_proj.weight", "qkv_proj.weight[q]", "qkv_proj.weight[v]"]


def test_a_name_is_itself_even_with_brackets() -> None:
    assert matching(["qkv_proj.weight[q]"], SITES) == ["qkv_proj.weight[q]"]


def test_patterns_keep_the_order_of_the_names() -> None:
    assert matching(["qkv*", "q_*"], SITES) == SITES
    assert matching(["*[qv]?"], ["aq1", "av1", "ax1"]) == ["aq1", "av1"]


def test_capitals_matter() -> None:
    assert matching(["Q_PROJ*"], SITES) == []


def test_an_unknown_name_is_met_with_near_ones() -> None:
    with pytest.raises(UsageError) as caught:
        select("--sites", ["q_proj*", "k_proj.weight"], SITES, "look at the list")
    assert str(caught.value) == (
        "--sites 'k_proj.weight' matches none of 3 names; did you mean 'q_proj.weight' or "
        "'qkv_proj.weight[v]' or 'qkv_proj.weight[q]'?\n  what to do: look at the list"
    )


def test_without_a_near_one_nothing_is_guessed() -> None:
    with pytest.raises(UsageError, match="matches none of 3 names\n"):
        select("--sites", ["zzz"], SITES, "look")
