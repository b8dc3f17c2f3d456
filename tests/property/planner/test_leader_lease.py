"""The leader's lease under any delay, any pause, any death: never two that believe, and somebody leads before long.

Candidates' clocks start anywhere and run at rates that differ; writes and reads take as long as is drawn, order is that
of the log. Time goes in steps of a tenth of a second of true time.
"""

from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluicegate.domain.events import Ticked
from sluicegate.domain.lease import Lease
from sluicegate.domain.plan import FAR, MAX_TERM
from sluicegate.planner.control.leader_lease import (
    CaughtUp,
    Lead,
    LeaderLease,
    LeaseEvent,
    LeaseRead,
    StepDown,
    Stopping,
    TermSeen,
    Write,
    valid,
)

LEASE = 3.0
STEP = 0.1


@dataclass
class Candidate:
    """A planner with a clock of its own, and its place in the log."""

    name: str
    rate: float
    offset: float
    policy: LeaderLease = field(init=False)
    position: int = 0
    reads_at: float = 0.0
    paused_until: float = 0.0
    dead: bool = False
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.policy = LeaderLease(self.name, lease=LEASE)

    def clock(self, now: float) -> float:
        return self.offset + self.rate * now

    def believes(self, now: float) -> bool:
        """Also while it is paused: what it would find if it looked."""
        return not self.dead and self.policy.leads(self.clock(now))


class World:
    """One log, records under way, and who reads it."""

    def __init__(self, candidates: list[Candidate]) -> None:
        self.candidates = candidates
        self.now = 0.0
        self.log: list[Lease] = []
        self.under_way: list[tuple[float, Lease]] = []

    def tell(self, who: Candidate, event: LeaseEvent, delay: float) -> None:
        for action in who.policy.handle(event, who.clock(self.now)):
            match action:
                case Write(lease):
                    self.under_way.append((self.now + delay, lease))
                case Lead(term):
                    who.told.append(f"lead {term}")
                case StepDown():
                    assert who.told and who.told[-1].startswith("lead")
                    who.told.append("down")

    def step(self, delay: float) -> None:
        self.now += STEP
        arrived = [entry for entry in self.under_way if entry[0] <= self.now]
        self.under_way = [entry for entry in self.under_way if entry[0] > self.now]
        self.log += [lease for _, lease in arrived]
        for who in self.candidates:
            if who.dead or self.now < who.paused_until:
                continue
            if self.now >= who.reads_at:
                while who.position < len(self.log):
                    lease = self.log[who.position]
                    who.position += 1
                    self.tell(who, LeaseRead(lease), delay)
                    self.alone()
            self.tell(who, Ticked(), delay)
        self.alone()

    def forge(self, name: str, *, term: int, renewals: int, claims: bool = False, released: bool = False) -> None:
        """A stranger's record in the name of a candidate, so far beyond the newest that counts."""
        newest: Lease | None = None
        for lease in self.log:
            newest = lease if valid(lease, newest) else newest
        last = newest or Lease(term=0, holder=name)
        count = min(2**53 - 1, renewals if term else last.renewals + renewals)
        upon = last.place if claims else None
        self.log.append(Lease(term=last.term + term, holder=name, renewals=count, claims=upon, released=released))

    def alone(self) -> None:
        believing = [who.name for who in self.candidates if who.believes(self.now)]
        assert len(believing) <= 1, (self.now, believing, self.log)

    @property
    def leader(self) -> Candidate | None:
        return next((who for who in self.candidates if who.believes(self.now)), None)


rates = st.floats(0.96, 1.04)
offsets = st.floats(0.0, 1e6)


def started(clocks: list[tuple[float, float]]) -> World:
    world = World([Candidate(f"p{i}", rate, offset) for i, (rate, offset) in enumerate(clocks)])
    for who in world.candidates:
        world.tell(who, CaughtUp(), 0.0)
    return world


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(rates, offsets), min_size=2, max_size=4),
    st.lists(
        st.tuples(
            st.integers(1, 25),  # steps
            st.floats(0.0, 8.0),  # delay of writes
            st.integers(0, 3),  # who is hit
            st.sampled_from(["nothing", "pause", "deaf", "die", "leave", "forge"]),
            st.floats(0.0, 9.0),  # for how long, or how far
        ),
        min_size=5,
        max_size=25,
    ),
)
def test_no_two_believe_at_once_under_any_delay_pause_or_death(
    clocks: list[tuple[float, float]], story: list[tuple[int, float, int, str, float]]
) -> None:
    world = started(clocks)
    for steps, delay, hit, what, long in story:
        who = world.candidates[hit % len(world.candidates)]
        if what == "pause":
            who.paused_until = world.now + long
        elif what == "deaf":
            who.reads_at = world.now + long
        elif what == "die":
            who.dead = True
        elif what == "leave" and not who.dead:
            world.tell(who, Stopping(), delay)
            who.dead = True
        elif what == "forge":
            world.forge(who.name, term=int(long) % 3, renewals=int(long), claims=long > 4.5)
        for _ in range(steps):
            world.step(delay)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(rates, offsets), min_size=2, max_size=4),
    st.floats(0.0, 0.4),
    st.integers(20, 80),
    st.booleans(),
)
def test_another_leads_within_the_lease_after_a_death_and_at_once_after_a_release(
    clocks: list[tuple[float, float]], delay: float, before: int, dies: bool
) -> None:
    world = started(clocks)
    for _ in range(before):
        world.step(delay)
    first = world.leader
    assert first is not None
    term = first.policy.newest.term if first.policy.newest else 0
    if not dies:
        world.tell(first, Stopping(), delay)
    first.dead = True
    died = world.now
    # the last renewal may be under way still; then the lease on the slowest clock; then a claim there and back
    bound = (delay + LEASE / 0.96 if dies else delay) + delay + 5 * STEP
    while world.leader is None:
        assert world.now - died <= bound
        world.step(delay)
    newest = world.leader.policy.newest
    assert newest is not None
    assert newest.term > term


@given(st.lists(st.tuples(rates, offsets), min_size=2, max_size=4))
@settings(max_examples=20, deadline=None)
def test_of_those_that_start_together_the_first_on_the_log_leads_and_nobody_disturbs_it(
    clocks: list[tuple[float, float]],
) -> None:
    world = started(clocks)
    for _ in range(300):
        world.step(0.05)
    assert world.candidates[0].told == ["lead 1"]
    assert all(not who.told for who in world.candidates[1:])


def test_who_could_not_renew_stands_by_and_leads_again_in_its_term_if_nobody_else_did() -> None:
    alone = Candidate("a", 1.0, 0.0)
    world = World([alone])
    world.tell(alone, CaughtUp(), 0.0)
    for _ in range(20):
        world.step(0.0)
    assert alone.told == ["lead 1"]
    for _ in range(60):
        world.step(4.0)  # the broker takes longer than the lease
    assert alone.told == ["lead 1", "down"]
    for _ in range(60):
        world.step(0.0)
    assert alone.told == ["lead 1", "down", "lead 1"]


@given(
    st.integers(1, 2),
    st.lists(
        st.tuples(
            st.integers(0, FAR),
            st.sampled_from([1, 2, 50, 2**53 - 1]),
            st.booleans(),
            st.booleans(),
            st.integers(0, 60),
        ),
        min_size=1,
        max_size=4,
    ),
)
@settings(max_examples=60, deadline=None)
@example(1, [(0, 2**53 - 1, False, False, 0)])
def test_whatever_a_stranger_writes_in_the_leaders_name_one_leads_again_two_leases_later(
    candidates: int, forged: list[tuple[int, int, bool, bool, int]]
) -> None:
    world = started([(1.0, 7.0)] * candidates)
    for _ in range(35):
        world.step(0.05)
    for term, renewals, claims, released, steps in forged:
        world.forge("p0", term=term, renewals=renewals, claims=claims, released=released)
        for _ in range(steps):
            world.step(0.05)
    for _ in range(round(2 * LEASE / STEP)):
        world.step(0.05)
    assert world.leader is not None
    for _ in range(100):
        world.step(0.05)
        assert world.leader is not None


def test_a_record_seen_twice_or_from_an_older_term_changes_nothing() -> None:
    standby = LeaderLease("s", lease=LEASE)
    claim = Lease(term=4, holder="a", claims=(0, 0))
    renewal = Lease(term=4, holder="a", renewals=1)
    for lease in (claim, renewal):
        standby.handle(LeaseRead(lease), 10.0)
    standby.handle(CaughtUp(), 10.0)
    for lease in (claim, renewal, Lease(term=3, holder="z", renewals=9), Lease(term=5, holder="b", claims=(4, 0))):
        assert standby.handle(LeaseRead(lease), 12.9) == []
        assert standby.newest == renewal
    (write,) = standby.handle(Ticked(), 13.0)
    assert write == Write(Lease(term=5, holder="s", claims=(4, 1)))


def test_a_plan_of_a_higher_term_raises_the_term_of_the_claim() -> None:
    fresh = LeaderLease("n", lease=LEASE)
    assert fresh.handle(TermSeen(7), 0.0) == []
    (write,) = fresh.handle(CaughtUp(), 0.0)
    assert write == Write(Lease(term=8, holder="n", claims=(0, 0)))


def reading(*records: Lease, term: int = 0) -> LeaderLease:
    """A candidate that has read these, and a plan of ``term``, by second 10."""
    one = LeaderLease("n", lease=LEASE)
    one.handle(TermSeen(term), 10.0)
    for record in records:
        one.handle(LeaseRead(record), 10.0)
    one.handle(CaughtUp(), 10.0)
    return one


def test_a_term_that_nobody_can_have_reached_is_void() -> None:
    sound = Lease(term=4, holder="a", renewals=7)
    for strange in (Lease(term=4 + FAR + 1, holder="x", renewals=1), Lease(term=MAX_TERM, holder="x", released=True)):
        one = reading(sound, strange, term=4)
        assert one.newest == sound
        assert one.handle(Ticked(), 10.0 + LEASE) == [Write(Lease(term=5, holder="n", claims=(4, 7)))]


def test_where_a_strangers_term_is_all_that_is_left_leaders_go_on_from_the_plans() -> None:
    one = reading(Lease(term=MAX_TERM, holder="x", renewals=1), term=4)
    claim = Lease(term=5, holder="n", claims=(MAX_TERM, 1))
    assert one.handle(Ticked(), 10.0 + LEASE) == [Write(claim)]
    assert one.handle(LeaseRead(claim), 10.0 + LEASE) == [Lead(5, "x")]
    live = reading(Lease(term=4, holder="a", renewals=7), term=4)  # who has seen what was before believes the renewal
    live.handle(LeaseRead(claim), 13.0)
    live.handle(LeaseRead(Lease(term=5, holder="n", renewals=1)), 13.0)
    assert live.newest == Lease(term=5, holder="n", renewals=1)


def test_a_leader_whose_plans_are_outrun_steps_down_and_leads_in_a_higher_term() -> None:
    one = LeaderLease("n", lease=LEASE)
    (write,) = one.handle(CaughtUp(), 10.0)
    assert isinstance(write, Write)
    assert one.handle(LeaseRead(write.lease), 10.1) == [Lead(1)]
    down, write = one.handle(TermSeen(6), 10.2)
    assert isinstance(down, StepDown) and write == Write(Lease(term=7, holder="n", claims=(1, 0)))
    assert one.handle(LeaseRead(write.lease), 10.3)[0] == Lead(7, "n", again=True)
    assert one.handle(TermSeen(7 + FAR + 1), 10.4) == []
