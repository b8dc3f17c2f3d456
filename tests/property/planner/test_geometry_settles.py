"""A steady demand never makes GPUs flap, whatever it is, wherever they start, and whatever goes wrong with a cut."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.models.recut_world import RecutWorld
from tests.property.examples import drawn

STARTS = ("7g", "4g+3g", "3g+3g", "4g+2g+1g", "2g+2g+2g+1g", "1gx7")


@given(
    st.lists(st.sampled_from(STARTS), min_size=1, max_size=4),
    st.floats(0.0, 500.0),
    st.floats(0.0, 40.0),
    st.sampled_from((0.0, 2.0, 12.0)),
    st.sampled_from(("", "in use")),
)
@drawn(8)
def test_a_steady_demand_comes_to_rest_after_one_cut_of_a_gpu_at_most(
    start: list[str], light: float, heavy: float, cut_s: float, fault: str
) -> None:
    world = RecutWorld({f"g{i}": text for i, text in enumerate(start)}, cut_s=cut_s, hold=1e9)
    for gpu in world.gpus.values():
        gpu.fault = fault
    qps = {"light": len(start) * light, "heavy": len(start) * heavy}
    world.run(120, **qps)
    assert world.cuts <= len(start)
    before = world.cuts
    world.run(100, **qps)
    assert world.cuts == before


@given(st.integers(0, 10**6), st.sampled_from((0.3, 1.0, 2.0)))
@drawn(3)
def test_a_demand_that_fluctuates_as_arrivals_do_comes_to_rest_too(seed: int, load: float) -> None:
    rng = Random(seed)
    world = RecutWorld({f"g{i}": "4g+3g" for i in range(3)})

    def run(seconds: int) -> None:
        for _ in range(seconds):
            noisy = {app: max(0.0, rng.gauss(m, m**0.5)) for app, m in (("light", 300 * load), ("heavy", 20 * load))}
            world.run(1, **noisy)

    run(120)
    before = world.cuts
    run(200)
    assert world.cuts - before <= 1
