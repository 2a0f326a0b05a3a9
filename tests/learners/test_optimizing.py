import torch

from syncguard.learners.optimizing import Masters


def finite_values() -> torch.Tensor:
    """Every finite bf16 value, both zeros included."""
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    values = every.view(torch.bfloat16)
    return values[values.isfinite()].clone()


def bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.int16).clone()


def test_masters_round_to_the_weights_that_they_were_made_from() -> None:
    weight = finite_values()
    before = bits(weight)
    masters = Masters({"w": weight}, seed=1)
    assert masters.step("w", torch.zeros_like(weight), 0.1) == 0
    assert torch.equal(bits(weight), before)


def test_masters_hold_more_than_the_weights() -> None:
    weight = torch.full((4096,), 1.5, dtype=torch.bfloat16)
    Masters({"w": weight}, seed=1).step("w", torch.ones(4096), 2.0**-9)
    # Steps of a quarter of what bf16 resolves here carry a quarter of the weights along.
    assert 0.2 < float((weight != 1.5).float().mean()) < 0.3


def test_first_step_moves_each_weight_by_the_learning_rate() -> None:
    weight = torch.zeros(3, dtype=torch.bfloat16)
    changed = Masters({"w": weight}, seed=0).step("w", torch.tensor([1.0, -2.0, 0.0]), 0.5)
    assert changed == 2
    assert weight.tolist() == [-0.5, 0.5, 0.0]


def test_optimizer_remembers_earlier_gradients() -> None:
    weight = torch.zeros(1, dtype=torch.bfloat16)
    masters = Masters({"w": weight}, seed=0)
    masters.step("w", torch.ones(1), 0.5)
    masters.step("w", torch.zeros(1), 0.5)
    assert float(weight) < -0.75


def test_places_depend_on_the_seed_alone() -> None:
    def moved(seed: int) -> torch.Tensor:
        weight = torch.full((512,), 0.02, dtype=torch.bfloat16)
        Masters({"w": weight}, seed).step("w", torch.ones(512), 1e-5)
        return bits(weight)

    assert torch.equal(moved(7), moved(7))
    assert not torch.equal(moved(7), moved(8))


def test_noise_has_the_asked_size() -> None:
    torch.manual_seed(2)
    weight = torch.randn(4096).bfloat16()
    before = weight.float()
    changed = Masters({"w": weight}, seed=0).add_noise("w", 0.5, torch.Generator().manual_seed(1))
    assert changed > 4000
    assert 0.45 < float((weight.float() - before).std()) < 0.55


def test_noise_reaches_a_weight_of_equal_elements() -> None:
    weight = torch.ones(64, dtype=torch.bfloat16)
    Masters({"w": weight}, seed=0).add_noise("w", 0.5, torch.Generator().manual_seed(1))
    assert float(weight.float().std()) > 0.2


def test_float32_weights_are_their_own_masters() -> None:
    weight = torch.tensor([1.0, 2.0])
    masters = Masters({"w": weight}, seed=0)
    assert masters.step("w", torch.zeros(2), 0.1) == 0
    assert masters.step("w", torch.tensor([1.0, 0.0]), 0.1) == 1
    assert weight.tolist() != [1.0, 2.0]
