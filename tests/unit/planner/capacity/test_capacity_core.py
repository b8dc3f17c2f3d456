"""The core of elastic capacity: one thing at a time of each worker; spot devices are drained before they go."""

import pytest

from sluicegate.domain.actions import Announce
from sluicegate.domain.errors import ConfigurationError, IllegalEventError, InvalidInputError
from sluicegate.domain.events import DemandCounted, Ticked
from sluicegate.domain.fleet.device import Device
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import BatchLatency, Profile, Quantile
from sluicegate.domain.models.variant import Variant
from sluicegate.planner.capacity.autoscaling import Autoscaler, ScalingSettings, Unit
from sluicegate.planner.capacity.capacity_fields import SpotFields
from sluicegate.planner.capacity.core import CapacityCore
from sluicegate.planner.capacity.cores import LoadRules, SpotRules, load_core, spot_core
from sluicegate.planner.capacity.events import (
    Bill,
    CallFailed,
    CapacityAction,
    CapacityEvent,
    LookUp,
    Ordered,
    Release,
    Released,
    Restore,
    Serving,
    Start,
    Stop,
    Told,
    Wants,
    Withdraw,
    WorkerReported,
    WorkerStarted,
    WorkerStopped,
)
from sluicegate.planner.capacity.load_scaling import LoadScaling
from sluicegate.planner.capacity.procurement import (
    PER_GPU,
    AskSpot,
    CostMeter,
    InstanceUp,
    IntervalPassed,
    Kind,
    Mode,
    Noticed,
    OrderLapsed,
    OrderOnDemand,
    Prices,
    Procurement,
    SpotAnswered,
)
from sluicegate.planner.capacity.spare_pool import ElasticFleet, SpareState
from sluicegate.planner.capacity.spot_capacity import BOOT_TIMEOUT, GRACE, LONGEST, SpotCapacity
from sluicegate.profiles.catalogue.catalogue import Catalogue

START = 10_000.0
SETTLE = 3.0
ON_DEMAND, SPOT = 4.0, 1.5


def worth(actions: list[CapacityAction]) -> list[CapacityAction]:
    """Without what is told and counted at every look."""
    return [a for a in actions if not isinstance(a, Bill | Told | Announce | LookUp | Wants | Serving)]


class Scripted:
    """Says what it was given, whatever it hears."""

    def __init__(self) -> None:
        self.says: list[CapacityAction] = []

    def handle(self, event: CapacityEvent, now: float) -> list[CapacityAction]:
        del event, now
        said, self.says = self.says, []
        return said


def test_a_worker_is_stopped_only_once_its_start_is_answered_and_the_last_wish_counts() -> None:
    policy = Scripted()
    core = CapacityCore(policy)

    def says(*actions: CapacityAction) -> list[CapacityAction]:
        policy.says = list(actions)
        return core.handle(Ticked(), START)

    assert says(Start("a"), Start("b")) == [Start("a"), Start("b")]
    assert says(Stop("a"), Start("b")) == []
    assert core.handle(WorkerStarted("b"), START) == []
    assert core.handle(WorkerStarted("a"), START) == [Stop("a")]
    assert says(Start("a")) == []
    assert says(Stop("a")) == []  # it is under way, and the start is off
    assert core.handle(WorkerStopped("a"), START) == []


@pytest.mark.parametrize("wrong", [WorkerStopped("a"), WorkerStarted("b"), WorkerStopped("b")])
def test_an_answer_that_nobody_waits_for_raises(wrong: CapacityEvent) -> None:
    policy = Scripted()
    core = CapacityCore(policy)
    policy.says = [Start("a")]
    core.handle(Ticked(), START)
    with pytest.raises(IllegalEventError, match="under way"):
        core.handle(wrong, START)
    assert core.handle(WorkerStarted("a"), START) == []


class Market:
    """One spot device ``s`` beside ``d``, which is always there."""

    def __init__(self, mode: Mode = "hybrid", *, starts: bool = True) -> None:
        meter = CostMeter(Prices(ON_DEMAND, 0.0), {"s": Prices(ON_DEMAND, SPOT), "d": Prices(2.0, 2.0)})
        rule = SpotCapacity(Procurement(("s",), mode), meter, spot=("s",), always=("d",), interval=500.0, settle=SETTLE)
        self.core = CapacityCore(rule)
        self.now = START
        assert worth(self.tell(Ticked())) == [Restore("s"), Start("s")]
        self.tell(WorkerStarted("s", starts))

    def tell(self, event: CapacityEvent, after: float = 0.0) -> list[CapacityAction]:
        self.now += after
        return self.core.handle(event, self.now)

    def beat(self, after: float, queued: int) -> list[CapacityAction]:
        return worth(self.tell(WorkerReported("s", "gpu", 0.5, queued), after))


def test_a_noticed_device_is_drained_replaced_and_comes_back_at_the_price_of_what_replaced_it() -> None:
    market = Market()
    said = worth(market.tell(Noticed("s", market.now + 120.0)))
    assert said == [Withdraw("s"), AskSpot("s")]
    assert worth(market.tell(SpotAnswered("s", False))) == [OrderOnDemand("s")]
    market.tell(Ordered("s"))
    assert LookUp("s", Kind.ON_DEMAND) in market.tell(Ticked(), 1.0)
    assert market.beat(1.0, 0) == []  # routers may not have switched yet
    assert market.beat(SETTLE, 7) == []
    assert market.beat(0.5, 0) == [Stop("s")]
    assert worth(market.tell(InstanceUp("s", Kind.ON_DEMAND), 1.0)) == []  # the old worker has not ended
    assert worth(market.tell(WorkerStopped("s"))) == [Release("s", Kind.SPOT), Start("s")]
    assert worth(market.tell(WorkerStarted("s"))) == [Restore("s", ON_DEMAND)]
    market.tell(Released("s", Kind.SPOT))


def test_a_worker_that_could_not_be_started_is_started_again_and_its_device_comes_back_only_then() -> None:
    market = Market()
    market.tell(Noticed("s", market.now + 120.0))
    market.tell(SpotAnswered("s", True))
    assert market.beat(SETTLE, 0) == [Stop("s")]
    market.tell(InstanceUp("s", Kind.SPOT), 1.0)
    assert Start("s") in market.tell(WorkerStopped("s"))
    assert market.tell(WorkerStarted("s", False), 1.0) == []
    assert Start("s") in market.tell(Ticked(), 1.0)
    assert worth(market.tell(WorkerStarted("s"), 1.0)) == [Restore("s", SPOT)]
    assert Start("s") not in market.tell(Ticked(), 1.0)


@pytest.mark.parametrize("starts", [True, False])
def test_a_device_whose_replacement_is_taken_back_while_its_worker_starts_comes_back_on_the_next(starts: bool) -> None:
    market = Market()
    market.tell(Noticed("s", market.now + 120.0))
    market.tell(SpotAnswered("s", True))
    market.beat(SETTLE, 0)
    market.tell(InstanceUp("s", Kind.SPOT), 1.0)
    assert worth(market.tell(WorkerStopped("s"))) == [Start("s")]
    assert worth(market.tell(Noticed("s", market.now + 90.0), 1.0)) == [AskSpot("s")], "it is still withdrawn"
    assert worth(market.tell(SpotAnswered("s", False))) == [OrderOnDemand("s")]
    market.tell(Ordered("s"))
    assert worth(market.tell(WorkerStarted("s", starts), 1.0)) == [Stop("s")]
    assert market.beat(1.0, 0) == []
    assert worth(market.tell(WorkerStopped("s"), 1.0)) == []
    assert Start("s") not in market.tell(Ticked(), 1.0)
    assert worth(market.tell(InstanceUp("s", Kind.ON_DEMAND), 1.0)) == [Release("s", Kind.SPOT), Start("s")]
    assert worth(market.tell(WorkerStarted("s"), 1.0)) == [Restore("s", ON_DEMAND)]


def test_no_worker_is_started_on_a_replacement_that_is_taken_back_before_the_old_worker_has_ended() -> None:
    market = Market()
    market.tell(Noticed("s", market.now + 120.0))
    market.tell(SpotAnswered("s", True))
    market.tell(InstanceUp("s", Kind.SPOT), 1.0)
    market.tell(Noticed("s", market.now + 90.0), 1.0)
    market.tell(SpotAnswered("s", True))
    assert market.beat(SETTLE, 0) == [Stop("s")]
    assert worth(market.tell(WorkerStopped("s"))) == []
    assert worth(market.tell(InstanceUp("s", Kind.SPOT), 1.0)) == [Start("s")]
    assert worth(market.tell(WorkerStarted("s"))) == [Restore("s", SPOT)]


def test_a_worker_that_could_not_be_started_at_first_is_too_unless_its_instance_goes() -> None:
    for noticed in (False, True):
        market = Market(starts=False)
        if noticed:
            market.tell(Noticed("s", market.now + 120.0))
        assert (Start("s") in market.tell(Ticked(), 1.0)) is not noticed


def test_a_worker_that_holds_nothing_is_ended_as_soon_as_routers_have_switched_or_it_leaves_by_itself() -> None:
    market = Market()
    market.tell(Noticed("s", market.now + 120.0))
    assert market.beat(SETTLE - 1 / 1024, 0) == []
    assert market.beat(1 / 1024, 0) == [Stop("s")]
    other = Market()
    other.tell(Noticed("s", other.now + 120.0))
    assert worth(other.tell(WorkerReported("s", "gpu", 0.5, 7, ("v",), leaving=True), 1.0)) == [Stop("s")]


def test_a_worker_with_work_in_hand_is_ended_before_the_deadline() -> None:
    market = Market()
    deadline = market.now + 30.0
    market.tell(Noticed("s", deadline))
    market.now = deadline - GRACE - 0.5
    assert market.beat(0.0, 3) == []
    assert worth(market.tell(Ticked(), 0.5)) == [Stop("s")]


def test_where_nothing_presses_a_worker_has_a_minute_to_end() -> None:
    market = Market()
    market.tell(Noticed("s", market.now + 1.0))
    market.tell(SpotAnswered("s", False))
    market.tell(Ordered("s"))
    assert Stop("s") in market.tell(Ticked(), 2.0)
    market.tell(WorkerStopped("s"))
    market.tell(InstanceUp("s", Kind.ON_DEMAND), 1.0)
    market.tell(WorkerStarted("s"))
    assert AskSpot("s") in market.tell(Ticked(), 500.0)
    market.tell(SpotAnswered("s", True))
    assert worth(market.tell(InstanceUp("s", Kind.SPOT), 5.0)) == [Withdraw("s")]
    assert worth(market.tell(Ticked(), LONGEST - GRACE - 0.1)) == []
    assert worth(market.tell(Ticked(), 0.2)) == [Stop("s")]


def test_a_device_is_down_from_the_deadline_of_its_notice_on_unless_another_is_up_by_then() -> None:
    market = Market()
    market.tell(Noticed("s", market.now + 30.0))
    states = [a for a in market.tell(Ticked(), 29.9) if isinstance(a, Announce)]
    assert states == []
    down = Announce("procurement:s", "down", "DeadlinePassed")
    assert down in market.tell(Ticked(), 0.1)
    assert down not in market.tell(Ticked(), 1.0), "told once"
    saved = Market()
    saved.tell(Noticed("s", saved.now + 30.0))
    saved.tell(SpotAnswered("s", True))
    assert Announce("procurement:s", "spot", "InstanceUp") in saved.tell(InstanceUp("s", Kind.SPOT), 20.0)
    assert not [a for a in saved.tell(Ticked(), 10.0) if isinstance(a, Announce)]


def lapsed(mode: Mode, *, granted: bool) -> tuple[Market, list[CapacityAction]]:
    """A device is down, and what was ordered for it is not up for longer than an instance may take."""
    market = Market(mode)
    market.tell(Noticed("s", market.now + 30.0))
    market.tell(SpotAnswered("s", granted))
    if not granted:
        market.tell(Ordered("s"))
    market.beat(SETTLE, 0)
    market.tell(WorkerStopped("s"))
    kind = Kind.SPOT if granted else Kind.ON_DEMAND
    assert LookUp("s", kind) in market.tell(Ticked(), BOOT_TIMEOUT - SETTLE)
    return market, market.tell(Ticked(), 1.0)


def test_a_granted_instance_that_never_comes_up_is_given_up_and_one_on_demand_is_ordered() -> None:
    market, said = lapsed("hybrid", granted=True)
    assert worth(said) == [OrderOnDemand("s"), Release("s", Kind.SPOT)]
    assert Told("the spot instance of s is not up after 601 s and waited for no longer") in said
    assert not [a for a in market.tell(Ticked(), 1.0) if isinstance(a, LookUp)]
    assert market.tell(InstanceUp("s", Kind.SPOT)) == [], "too late"
    market.tell(Ordered("s"))
    assert Start("s") in market.tell(InstanceUp("s", Kind.ON_DEMAND), 9.0)


def test_an_ordered_instance_that_never_comes_up_is_ordered_again_and_spot_alone_is_asked_for_again() -> None:
    market, said = lapsed("hybrid", granted=False)
    assert worth(said) == [OrderOnDemand("s")], "by the same name, so that nothing is given back"
    market.tell(Ordered("s"))
    assert LookUp("s", Kind.ON_DEMAND) in market.tell(Ticked(), BOOT_TIMEOUT)
    alone, said = lapsed("spot-only", granted=True)
    assert worth(said) == [Release("s", Kind.SPOT)]
    assert AskSpot("s") in alone.tell(Ticked(), 500.0)


def test_what_serves_on_demand_goes_on_where_the_spot_instance_for_it_never_comes_up() -> None:
    market = Market()
    market.tell(Noticed("s", market.now + 30.0))
    market.tell(SpotAnswered("s", False))
    market.tell(Ordered("s"))
    market.beat(SETTLE, 0)
    market.tell(WorkerStopped("s"))
    market.tell(InstanceUp("s", Kind.ON_DEMAND), 9.0)
    assert worth(market.tell(WorkerStarted("s"))) == [Restore("s", ON_DEMAND)]
    assert AskSpot("s") in market.tell(Ticked(), 500.0)
    market.tell(SpotAnswered("s", True))
    assert worth(market.tell(Ticked(), BOOT_TIMEOUT)) == []
    assert worth(market.tell(Ticked(), 1.0)) == [Release("s", Kind.SPOT)]
    assert worth(market.tell(Ticked(), 500.0)) == [AskSpot("s")]


def test_what_is_slow_to_boot_is_waited_for_twice_as_long() -> None:
    slow, quick = (SpotFields(on_demand_price=4.0, boot_s=boot).rules().boot_timeout for boot in (400.0, 20.0))
    assert (slow, quick) == (800.0, BOOT_TIMEOUT)


def test_an_order_that_nobody_waits_for_cannot_lapse() -> None:
    with pytest.raises(IllegalEventError, match="an order for n lapsed, which waits for none"):
        Procurement(("n",), "hybrid").handle(OrderLapsed("n"), 5.0)


def test_a_worker_that_was_being_started_before_the_notice_is_not_the_one_that_comes_back() -> None:
    meter = CostMeter(Prices(ON_DEMAND, SPOT))
    rule = SpotCapacity(
        Procurement(("s",), "hybrid"), meter, spot=("s",), always=(), interval=500.0, settle=SETTLE
    )  # fmt: skip
    core = CapacityCore(rule)
    assert worth(core.handle(Ticked(), START)) == [Restore("s"), Start("s")]
    core.handle(Noticed("s", START + 90.0), START + 1.0)
    core.handle(SpotAnswered("s", True), START + 2.0)
    assert worth(core.handle(InstanceUp("s", Kind.SPOT), START + 3.0)) == []
    assert worth(core.handle(WorkerStarted("s"), START + 4.0)) == []
    stopped = core.handle(WorkerReported("s", "gpu", 0.0, 0), START + 9.0)
    assert worth(stopped) == [Stop("s")]
    assert worth(core.handle(WorkerStopped("s"), START + 10.0)) == [Start("s")], "the provider takes the old one itself"
    assert worth(core.handle(WorkerStarted("s"), START + 11.0)) == [Restore("s", SPOT)]


def test_the_first_nodes_of_a_hybrid_fleet_alone_are_always_on_demand() -> None:
    nodes = ("m", "n", "o")
    states = {
        mode: [Procurement(nodes, mode, core=1).state(node).value for node in nodes]
        for mode in ("hybrid", "spot-only", "on-demand")
    }
    assert states == {
        "hybrid": ["on_demand", "spot", "spot"],
        "spot-only": ["spot"] * 3,
        "on-demand": ["on_demand"] * 3,
    }
    for core in (-1, 4):
        with pytest.raises(InvalidInputError, match=f"^core: {core} is not within"):
            Procurement(nodes, "hybrid", core=core)


def test_a_node_that_asked_for_nothing_gets_no_answer_and_one_that_waits_does_not_ask() -> None:
    procurement = Procurement(("m", "n"), "hybrid", core=1)
    for node in ("m", "n"):
        with pytest.raises(IllegalEventError, match="which did not ask"):
            procurement.handle(SpotAnswered(node, True), START)
        assert procurement.handle(IntervalPassed(node), START) == []
    procurement.handle(Noticed("n", START + 60.0), START)
    assert procurement.handle(SpotAnswered("n", False), START + 1.0) == [OrderOnDemand("n")]
    procurement.handle(InstanceUp("n", Kind.ON_DEMAND), START + 9.0)
    assert procurement.handle(IntervalPassed("n"), START + 10.0) == [AskSpot("n")]
    assert procurement.handle(IntervalPassed("n"), START + 20.0) == [], "it waits for its answer"
    assert procurement.handle(SpotAnswered("n", False), START + 21.0) == []
    assert procurement.handle(IntervalPassed("n"), START + 30.0) == [AskSpot("n")]


def test_a_gpu_costs_an_eighth_of_a_machine_with_eight() -> None:
    prices = {provider: (p.on_demand, p.spot) for provider, p in PER_GPU.items()}
    assert prices == {
        "aws": pytest.approx((4.096575, 1.228975)),
        "azure": pytest.approx((4.09625, 2.2529375)),
        "gcp": pytest.approx((3.760575, 1.1018375)),
    }


def test_what_is_paid_is_by_kind_from_the_start_of_each_instance_to_its_end() -> None:
    meter = CostMeter(Prices(4.0, 1.5), {"n": Prices(9.0, 2.0)})
    meter.start("m", Kind.ON_DEMAND, START)
    meter.start("m", Kind.ON_DEMAND, START + 900.0)  # it follows the first
    meter.start("m", Kind.SPOT, START + 1800.0)
    meter.start("n", Kind.SPOT, START + 1800.0)
    meter.stop("m", Kind.ON_DEMAND, START + 2700.0)
    meter.stop("m", Kind.ON_DEMAND, START + 3600.0)
    meter.stop("unknown", Kind.SPOT, START + 3600.0)
    assert meter.by_kind(START + 3600.0) == {Kind.ON_DEMAND: 3.0, Kind.SPOT: 0.75 + 1.0}
    assert meter.total(START + 5400.0) == 3.0 + 1.5 + 2.0
    assert (meter.price("m", Kind.SPOT), meter.price("n", Kind.ON_DEMAND)) == (1.5, 9.0)


def test_a_notice_for_what_has_no_spot_instance_is_told_and_changes_nothing() -> None:
    market = Market()
    for node in ("d", "nobody"):
        (said,) = market.tell(Noticed(node, market.now + 60.0))
        assert isinstance(said, Told)


def test_a_provider_that_cannot_be_reached_is_asked_again_at_the_next_look() -> None:
    market = Market()
    market.tell(Noticed("s", market.now + 60.0))
    assert market.tell(CallFailed(AskSpot("s"))) == []
    assert AskSpot("s") in market.tell(Ticked(), 1.0)
    assert AskSpot("s") not in market.tell(Ticked(), 1.0)


def test_what_could_not_be_given_back_is_paid_and_given_back_later_unless_another_of_its_kind_is_there() -> None:
    market = Market("hybrid")
    market.tell(Noticed("s", market.now + 120.0))
    market.beat(SETTLE, 0)
    market.tell(WorkerStopped("s"))
    market.tell(SpotAnswered("s", False))
    market.tell(Ordered("s"))
    lost = Release("s", Kind.SPOT)
    assert lost in market.tell(InstanceUp("s", Kind.ON_DEMAND), 1.0)
    assert market.tell(CallFailed(lost)) == []
    said = market.tell(Ticked(), 3.0)
    assert lost in said
    assert lost not in market.tell(Ticked()), "once a failure"
    (bill,) = [a for a in said if isinstance(a, Bill)]
    assert bill.paid[Kind.SPOT] == pytest.approx(SPOT * (market.now - START) / 3600.0)
    market.tell(CallFailed(lost))
    said = market.tell(Ticked(), 500.0)
    assert lost in said and AskSpot("s") in said
    market.tell(CallFailed(lost))
    market.tell(SpotAnswered("s", True))
    assert lost not in market.tell(Ticked(), 1.0), "one that was ordered since would be given back"


def test_a_spot_instance_that_is_ordered_when_the_old_one_is_taken_is_not_given_back_with_it() -> None:
    market = Market("spot-only")
    market.tell(Noticed("s", market.now + 60.0))
    market.beat(SETTLE, 0)
    market.tell(WorkerStopped("s"))
    market.tell(SpotAnswered("s", True), 60.0 - SETTLE - 1.0)
    said = market.tell(Ticked(), 1.0)
    assert Release("s", Kind.SPOT) not in said and LookUp("s", Kind.SPOT) in said
    assert Release("s", Kind.SPOT) not in market.tell(Ticked(), 30.0)
    (bill,) = [a for a in market.tell(Ticked()) if isinstance(a, Bill)]
    assert bill.paid[Kind.SPOT] == pytest.approx(SPOT * 60.0 / 3600.0), "none ran in the last half minute"
    assert worth(market.tell(InstanceUp("s", Kind.SPOT))) == [Start("s")]


@pytest.mark.parametrize("up", [False, True])
def test_what_a_worker_drains_from_is_not_given_back_where_another_of_its_kind_came_meanwhile(up: bool) -> None:
    market = Market()
    market.tell(Noticed("s", market.now + 2000.0))
    market.tell(SpotAnswered("s", False))
    market.tell(Ordered("s"))
    market.tell(InstanceUp("s", Kind.ON_DEMAND), 1.0)
    market.beat(1.0, 3)
    assert AskSpot("s") in market.tell(Ticked(), 500.0)
    market.tell(SpotAnswered("s", True))
    if up:
        market.tell(InstanceUp("s", Kind.SPOT), 1.0)
    assert market.beat(SETTLE, 0) == [Stop("s")]
    given = [a for a in market.tell(WorkerStopped("s")) if isinstance(a, Release)]
    assert given == ([Release("s", Kind.ON_DEMAND)] if up else [])
    assert Release("s", Kind.SPOT) not in market.tell(Ticked(), 1.0)


def test_an_order_that_is_not_confirmed_yet_is_not_given_back_with_the_old_instance() -> None:
    market = Market()
    market.tell(Noticed("s", market.now + 60.0))
    market.beat(SETTLE, 0)
    market.tell(WorkerStopped("s"))
    market.tell(SpotAnswered("s", False))
    market.tell(Ordered("s"))
    market.tell(InstanceUp("s", Kind.ON_DEMAND), 1.0)
    market.tell(WorkerStarted("s"))
    assert AskSpot("s") in market.tell(Ticked(), 500.0)
    market.tell(SpotAnswered("s", True))
    market.tell(InstanceUp("s", Kind.SPOT), 1.0)
    assert market.beat(SETTLE, 0) == [Stop("s")]
    market.tell(Noticed("s", market.now + 60.0))
    assert OrderOnDemand("s") in market.tell(SpotAnswered("s", False))
    assert Release("s", Kind.ON_DEMAND) not in market.tell(WorkerStopped("s"))
    market.tell(Ordered("s"))
    assert Start("s") in market.tell(InstanceUp("s", Kind.ON_DEMAND), 1.0)


def test_an_instance_that_was_not_ordered_is_not_paid() -> None:
    market = Market()
    assert market.tell(InstanceUp("s", Kind.ON_DEMAND)) == []
    (bill,) = [a for a in market.tell(Ticked(), 3600.0) if isinstance(a, Bill)]
    assert bill.paid == {Kind.SPOT: pytest.approx(SPOT), Kind.ON_DEMAND: pytest.approx(2.0)}


def test_workers_come_with_the_load_and_go_once_it_has_fallen_for_the_time_they_are_kept() -> None:
    unit = Unit("a0", batch=4, seconds=0.1, slo=0.5)
    rule = LoadScaling(
        {"a": unit},
        Autoscaler({"a0": 4}, ScalingSettings(keep_alive=20.0)),
        ElasticFleet(1, ("s0", "s1"), settle=SETTLE, patience=60.0, start_timeout=30.0),
        headroom=1.0,
        lead=0.0,
    )
    core, now = CapacityCore(rule), START

    def run(seconds: float, qps: int) -> list[CapacityAction]:
        nonlocal now
        said: list[CapacityAction] = []
        for _ in range(round(2 * seconds)):
            now += 0.5
            said += core.handle(DemandCounted("a", qps // 2, 0.5), now)
            said += core.handle(Ticked(), now)
        return said

    assert worth(run(10.0, 20)) == []
    grown = run(10.0, 70)  # 7 queries on hand are two workers' batches
    assert worth(grown) == [Restore("s0"), Start("s0")]
    assert [told.text for told in grown if isinstance(told, Told)] == ["starts the worker of s0"]
    core.handle(WorkerStarted("s0"), now)
    core.handle(WorkerReported("s0", "cpu", 0.9, 5, ("a0",)), now)
    assert Withdraw("s0") not in run(10.0, 20)
    fallen = run(20.0, 20)
    assert Withdraw("s0") in fallen
    assert [told.text for told in fallen if isinstance(told, Told)] == ["s0 is not needed and will end"]


@pytest.mark.parametrize("ok", [True, False])
def test_a_worker_that_could_not_start_is_held_for_ended_and_one_that_did_is_not(ok: bool) -> None:
    fleet = ElasticFleet(1, ("s0", "s1"), settle=SETTLE, patience=60.0, start_timeout=30.0)
    scaler = Autoscaler({"a0": 4}, ScalingSettings(keep_alive=20.0))
    rule = LoadScaling({"a": Unit("a0", batch=4, seconds=0.1, slo=0.5)}, scaler, fleet, headroom=1.0, lead=0.0)
    for half in range(20):
        rule.handle(DemandCounted("a", 35, 0.5), START + half / 2)
        rule.handle(Ticked(), START + half / 2)
    assert fleet.state("s0") is SpareState.STARTING
    said = rule.handle(WorkerStarted("s0", ok), START + 10.0)
    assert (Start("s1") in said) is not ok
    assert (fleet.state("s0") is SpareState.STARTING) is ok  # until it is heard


@pytest.mark.parametrize(
    ("rows", "leaving", "wants"),
    [(0, False, (2, 3)), (23, False, (3, 3)), (22, False, (2, 3)), (30, False, (3, 3)), (30, True, (2, 3))],
)
def test_each_app_wants_the_batches_of_its_own_load_with_headroom_and_its_part_of_what_waits(
    rows: int, leaving: bool, wants: tuple[int, int]
) -> None:
    """By hand: 1.25 x 35 a second x 0.1 s are 4.4 on hand, in batches of 4; 1.25 x 9 x 0.4 s are 4.5, in twos.

    Of 23 rows that wait, of however many queries, 18.3 are of the first, to be gone within 0.5 s: 3.66 more on hand.
    Who leaves takes its own along.
    """
    rule = LoadScaling(
        {"a": Unit("a0", batch=4, seconds=0.1, slo=0.5), "b": Unit("b0", batch=2, seconds=0.4, slo=2.0)},
        Autoscaler({"a0": 4, "b0": 2}, ScalingSettings(keep_alive=0.0)),
        ElasticFleet(1, tuple(f"s{i}" for i in range(9)), settle=SETTLE, patience=60.0, start_timeout=30.0),
        headroom=1.25,
        lead=0.0,
    )
    core, now = CapacityCore(rule), START
    told: list[CapacityAction] = []
    for _ in range(120):
        now += 1.0
        core.handle(DemandCounted("a", 35, 1.0), now)
        core.handle(DemandCounted("b", 9, 1.0), now)
        core.handle(WorkerReported("d", "cpu", 0.5, min(3, rows), ("a0",), leaving, rows), now)
        core.handle(WorkerReported("s8", "cpu", 0.5, 7, ("a0",), True, 7), now)
        told = core.handle(Ticked(), now)
    assert [(w.app, w.workers) for w in told if isinstance(w, Wants)] == list(zip("ab", wants, strict=True))


def test_an_app_that_nobody_asks_wants_no_worker_and_one_that_was_asked_none_once_that_is_over() -> None:
    """Of a batch that takes 40 s too: nothing, rounded up."""
    scaler = Autoscaler({"a0": 4, "b0": 1}, ScalingSettings(keep_alive=20.0))
    fleet = ElasticFleet(1, ("s0", "s1"), settle=SETTLE, patience=60.0, start_timeout=30.0)
    units = {"a": Unit("a0", batch=4, seconds=0.1, slo=0.5), "b": Unit("b0", batch=1, seconds=40.0, slo=90.0)}
    rule = LoadScaling(units, scaler, fleet, headroom=1.25, lead=10.0)

    def wants(seconds: int, qps: int) -> dict[str, int]:
        nonlocal now
        told: dict[str, int] = {}
        for _ in range(seconds):
            now += 1.0
            if qps:
                rule.handle(DemandCounted("a", qps, 1.0), now)
            told = {one.app: one.workers for one in rule.handle(Ticked(), now) if isinstance(one, Wants)}
        return told

    now = START
    assert wants(5, 0) == {"a": 0, "b": 0}
    assert fleet.state("s0") is SpareState.OFF
    assert wants(30, 35) == {"a": 2, "b": 0}
    assert fleet.state("s0") is SpareState.STARTING
    assert wants(120, 0) == {"a": 0, "b": 0}
    assert fleet.state("s0") is SpareState.ENDING, "withdrawn, and ended as nothing is held there"


def test_what_waits_at_a_worker_that_fell_silent_counts_no_more() -> None:
    rule = LoadScaling(
        {"a": Unit("a0", batch=4, seconds=0.1, slo=0.5)},
        Autoscaler({"a0": 4}, ScalingSettings(keep_alive=0.0)),
        ElasticFleet(2, ("s0",), settle=SETTLE, patience=60.0, start_timeout=30.0),
        headroom=1.0,
        lead=0.0,
    )

    def wanted(start: int, end: int, *reporting: str) -> list[int]:
        found: list[int] = []
        for now in range(start, end):
            rule.handle(DemandCounted("a", 35, 1.0), START + now)
            for device in reporting:
                rule.handle(WorkerReported(device, "cpu", 0.9, 4, ("a0",), rows=30), START + now)
            said = rule.handle(Ticked(), START + now)
            found += [action.workers for action in said if isinstance(action, Wants)]
        return found

    assert wanted(0, 100, "d0", "d1")[-1] == 4  # 60 that wait within 0.5 s are 12 more on hand than 3.5
    after = wanted(100, 160, "d0")
    assert after[2] == 4, "one late heartbeat is no death"
    assert after[-1] == 3


def test_workers_are_wanted_before_a_rising_load_comes_with_headroom_over_what_is_expected() -> None:
    """60 a second, one more each: with a quarter more 75 now, 7.5 on hand in two batches of 4, and 87.5 in 10 s."""
    rule = LoadScaling(
        {"a": Unit("a0", batch=4, seconds=0.1, slo=0.5)},
        Autoscaler({"a0": 4}, ScalingSettings(keep_alive=0.0)),
        ElasticFleet(1, ("s0", "s1", "s2"), settle=SETTLE, patience=60.0, start_timeout=30.0),
        headroom=1.25,
        lead=10.0,
    )
    core, now = CapacityCore(rule), START
    told: list[CapacityAction] = []
    for qps in range(10, 61):
        now += 1.0
        core.handle(DemandCounted("a", qps, 1.0), now)
        told = core.handle(Ticked(), now)
    assert [w.workers for w in told if isinstance(w, Wants)] == [3]


DEVICES = (
    Device(name="d", type="cpu", price=2.0),
    Device(name="s0", type="cpu", price=1.5, spot=True),
    Device(name="s1", type="cpu", price=1.25),
    Device(name="g", type="gpu"),
)
CATALOGUE = Catalogue.of(
    [App(name="a", slo=0.5), App(name="b", slo=0.1)],
    [Variant(name="a0", app="a", accuracy=0.9), Variant(name="b0", app="b", accuracy=0.9)],
    [
        Profile(variant="a0", device_type="cpu", points=(BatchLatency(1, 0.1, 0.2), BatchLatency(2, 0.15, 0.25))),
        Profile(variant="b0", device_type="cpu", points=(BatchLatency(1, 0.06, 0.08),)),
    ],
)


def load_rules(*spare: str) -> LoadRules:
    return LoadRules(
        spare=spare, keep_alive=20.0, headroom=1.0, lead=0.0, settle=SETTLE, patience=60.0, start_timeout=30.0
    )


@pytest.mark.parametrize(
    ("spare", "told"),
    [(("s0", "x"), "'x' is not among the devices"), (("s0", "g"), "devices of one type only, not cpu, gpu"),
     (("g",), "no app has a variant that is fast enough on gpu")],
)  # fmt: skip
def test_spare_devices_that_cannot_serve_are_refused_by_name(spare: tuple[str, ...], told: str) -> None:
    with pytest.raises(ConfigurationError, match=f"scaling.spare: {told}"):
        load_core(load_rules(*spare), CATALOGUE, DEVICES, "p95")


def test_a_worker_that_is_said_to_have_started_and_no_more_did() -> None:
    assert WorkerStarted("s").ok


@pytest.mark.parametrize(("quantile", "workers"), [("p95", 3), ("median", 2)])
def test_capacity_that_follows_the_load_counts_on_what_a_worker_does_within_half_the_slo(
    quantile: Quantile, workers: int
) -> None:
    """20 a second of "a" are 5 on hand at two in 250 ms, and 3 at two in 150; of "b" nothing is fast enough."""
    core, now = load_core(load_rules("s1", "s0"), CATALOGUE, DEVICES, quantile), START
    told: list[CapacityAction] = []
    for _ in range(30):
        now += 0.5
        core.handle(DemandCounted("a", 10, 0.5), now)
        told += core.handle(Ticked(), now)
    assert [a for a in told if isinstance(a, Wants)][-1] == Wants("a", workers)
    assert [a for a in told if isinstance(a, Serving)][-1] == Serving(workers)
    assert [a for a in told if isinstance(a, Start)] == [Start("s1")] * (workers - 2), "two serve whatever is wanted"


def test_an_app_that_is_registered_later_is_scaled_for_and_one_that_is_retired_no_more() -> None:
    """By hand: 20 a second of "c" at four in 50 ms are 1 on hand, and 200 are 10, which are three batches."""
    core, now = load_core(load_rules("s1", "s0"), CATALOGUE, DEVICES, "p95"), START
    later = Catalogue.of(
        [CATALOGUE.apps["a"], App(name="c", slo=0.4)],
        [CATALOGUE.variants["a0"], Variant(name="c0", app="c", accuracy=0.8)],
        [
            CATALOGUE.profiles["a0", "cpu"],
            Profile(variant="c0", device_type="cpu", points=(BatchLatency(4, 0.04, 0.05),)),
        ],
    )

    def wants(a: int, c: int) -> dict[str, int]:
        nonlocal now
        told: dict[str, int] = {}
        for _ in range(60):
            now += 0.5
            core.handle(DemandCounted("a", a, 0.5), now)
            core.handle(DemandCounted("c", c, 0.5), now)
            told = {one.app: one.workers for one in core.handle(Ticked(), now) if isinstance(one, Wants)}
        return told

    assert wants(3, 100) == {"a": 1}
    assert core.handle(later.registered, now) == []
    assert wants(3, 100) == {"a": 1, "c": 3}
    assert core.handle(later.only({"a"}).registered, now) == [Wants("c", 0)]
    assert wants(3, 100) == {"a": 1}


def test_spot_capacity_needs_a_device_that_is_spot_and_pays_each_what_it_costs() -> None:
    rules = SpotRules(on_demand_price=4.0, mode="hybrid", interval=500.0, settle=SETTLE)
    with pytest.raises(ConfigurationError, match="procurement: no device is set as spot"):
        spot_core(rules, (DEVICES[0], DEVICES[2]))
    core = spot_core(rules, DEVICES[:3])
    assert worth(core.handle(Ticked(), START)) == [Restore("s0"), Start("s0")]
    (bill,) = [a for a in core.handle(Ticked(), START + 3600.0) if isinstance(a, Bill)]
    assert bill.paid == {Kind.SPOT: pytest.approx(1.5), Kind.ON_DEMAND: pytest.approx(2.0 + 1.25)}


def test_work_that_is_not_done_before_the_deadline_is_ended_then_and_what_is_let_go_is_given_back() -> None:
    market = Market()
    market.tell(Noticed("s", market.now + 30.0))
    market.tell(WorkerReported("s", "gpu", 0.5, 7))
    assert worth(market.tell(Ticked(), 21.0)) == []
    said = market.tell(Ticked(), 9.0)
    assert Stop("s") in said and Told("s is ended with work in hand") in said
    assert worth(market.tell(WorkerStopped("s"))) == [Release("s", Kind.SPOT)]
