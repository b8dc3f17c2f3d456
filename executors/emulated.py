"""An executor that takes as long as a profile says and answers zeros: a device that is not there, in real time.

Rules. One batch at a time. A batch ends at its start plus the profiled latency on the event loop's clock; what the
loop oversleeps is taken off the next batch, so that throughput is the profile's and not the timer's. Jitter, when
asked for, is lognormal with the profile's median and p95, from a seeded generator. Loading takes the profile's time.
What would take longer than it may is given up when that time has passed: everything loaded is gone, and what runs,
waits or loads beside it fails, as it does when a process ends.
"""

import asyncio
import math
import random
from collections.abc import Callable, Sequence

from sluicegate.domain.errors import ExecutionError, LoadError
from sluicegate.domain.executor import Executed, Loaded
from sluicegate.domain.models.app import App
from sluicegate.domain.models.profile import Z95, LatencyCurve, Profile, Quantile
from sluicegate.domain.models.tensor import Tensor
from sluicegate.domain.models.variant import Variant
from sluicegate.profiles.catalogue.catalogue import Catalogue

_MOST_CARRIED = 0.02
"""Seconds of oversleep carried over at most: a stalled event loop is not paid back by impossibly short batches."""


def _now() -> float:
    return asyncio.get_running_loop().time()


class EmulatedExecutor:
    """Emulates one device or slice of ``device_type``, as ``catalogue`` profiles it.

    ``quantile``: which latency a batch takes; with ``jitter`` it is drawn around the median instead, from ``seed``.
    ``slowdown`` multiplies every latency. ``memory_bytes``: what may be loaded in all
    (0: no limit).
    """

    def __init__(
        self,
        catalogue: Catalogue,
        device_type: str,
        *,
        quantile: Quantile = "median",
        jitter: bool = False,
        seed: int | str = 0,
        slowdown: float = 1.0,
        memory_bytes: int = 0,
    ) -> None:
        self._catalogue = catalogue
        self._device_type = device_type
        self._quantile: Quantile = "median" if jitter else quantile
        self._jitter = random.Random(seed) if jitter else None  # noqa: S311 - latencies, not secrets
        self._slowdown = slowdown
        self._memory_bytes = memory_bytes
        self._hosted: dict[str, _Hosted] = {}
        self._turn = asyncio.Lock()
        self._started = False
        self._life = 0
        self._asleep: dict[asyncio.Future[None], None] = {}  # in one order: they are woken in it
        self._overslept = 0.0
        self._on_end: Callable[[], None] = lambda: None

    def watch(self, on_end: Callable[[], None]) -> None:
        """It ends unasked only where a batch or a load takes too long."""
        self._on_end = on_end

    @property
    def profiled_as(self) -> str:
        """The device type whose profile it follows."""
        return self._device_type

    @property
    def service(self) -> str:
        """What a batch takes: "median", "p95", or "sampled" around the median."""
        return "sampled" if self._jitter is not None else self._quantile

    @property
    def loads(self) -> dict[str, float]:
        """Seconds that loading took, of each variant that is loaded."""
        return {name: hosted.loaded.load_s for name, hosted in self._hosted.items()}

    async def start(self) -> None:
        """Nothing stands behind it: it only begins to answer."""
        self._started = True

    async def load(self, variant: Variant, *, max_batch: int, within: float | None = None) -> Loaded:
        """Take the profile's load time. Raises LoadError without a profile for that batch, or without memory."""
        if not self._started:
            raise LoadError(f"{variant.name}: the executor is not started")
        old = self._hosted.get(variant.name)
        if old and old.max_batch >= max_batch:
            return old.loaded
        profile = self._profile(variant, max_batch)
        others = sum(h.loaded.memory_bytes for name, h in self._hosted.items() if name != variant.name)
        if self._memory_bytes and others + profile.memory_bytes > self._memory_bytes:
            raise LoadError(
                f"{variant.name}: needs {profile.memory_bytes} bytes and {self._memory_bytes - others} are free"
            )
        begun = _now()
        try:
            if within is not None and profile.load > within:
                await self._sleep(within)
                await self.close()
                self._on_end()
                raise LoadError(f"{variant.name}: load took more than {within:.3g} s")
            await self._sleep(profile.load)
        except ExecutionError as error:
            raise LoadError(f"{variant.name}: {error}") from error
        loaded = Loaded(variant.name, _now() - begun, profile.memory_bytes)
        app = self._catalogue.apps[variant.app]
        self._hosted[variant.name] = _Hosted(loaded, profile, app, max_batch, self._quantile)
        return loaded

    async def unload(self, variant: str) -> None:
        """Forget it."""
        self._hosted.pop(variant, None)

    async def run(
        self,
        variant: str,
        inputs: Sequence[Sequence[Tensor]],
        rows: int,
        *,
        within: float | None = None,
        apart: bool = False,
    ) -> Executed:
        """Sleep as long as the profile says, then answer zeros of the app's output shapes."""
        if not self._started:
            raise ExecutionError("the executor is not started", fatal=True)
        hosted = self._hosted.get(variant)
        if hosted is None:
            raise ExecutionError(f"{variant} is not loaded")
        if not 1 <= rows <= hosted.max_batch:
            raise ExecutionError(f"{variant}: {rows} rows where 1..{hosted.max_batch} were loaded for")
        _check_rows(variant, inputs, rows)
        life = self._life
        async with self._turn:
            if life != self._life:
                raise _gone()
            begun = _now()
            length = hosted.longest(variant, inputs)
            takes = self._draw(hosted.curve.at(rows, length), hosted.p95.at(rows, length))
            if within is not None and takes > within:
                await self._sleep_until(begun + within)
                if not apart:
                    await self.close()
                    self._on_end()
                raise ExecutionError(f"{variant}: run took more than {within:.3g} s", fatal=not apart, apart=apart)
            await self._sleep_until(begun + takes)
            return Executed(hosted.zeros(rows), _now() - begun)

    async def close(self) -> None:
        """Forget everything, and end what runs and loads. It can be started again."""
        self._started = False
        self._life += 1
        self._hosted.clear()
        for over in self._asleep:
            if not over.done():
                over.set_exception(_gone())

    def _profile(self, variant: Variant, max_batch: int) -> Profile:
        profile = self._catalogue.profiles.get((variant.name, self._device_type))
        if profile is None or variant.app not in self._catalogue.apps:
            raise LoadError(f"{variant.name} has no profile on {self._device_type!r}; profile it first")
        if not 1 <= max_batch <= profile.max_batch:
            raise LoadError(f"{variant.name}: batches up to {max_batch} asked for, profiled up to {profile.max_batch}")
        return profile

    def draw(self, profile: Profile, rows: int) -> float:
        """Seconds that the next batch of ``rows`` of the longest takes by ``profile``, slowdown included."""
        return self._draw(profile.curve(self._quantile)(rows), profile.curve("p95")(rows))

    def _draw(self, seconds: float, p95: float) -> float:
        if self._jitter is not None:
            sigma = math.log(max(1.0, p95 / seconds)) / Z95
            seconds *= math.exp(sigma * self._jitter.gauss(0.0, 1.0))
        return seconds * self._slowdown

    async def _sleep_until(self, end: float) -> None:
        target = end - self._overslept
        while (left := target - _now()) > 0.0:
            await self._sleep(left)
        self._overslept = min(_MOST_CARRIED, max(0.0, _now() - target))

    async def _sleep(self, seconds: float) -> None:
        """Sleep. Raises ExecutionError where it is closed meanwhile."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _end, over)
        self._asleep[over] = None
        try:
            await over
        finally:
            timer.cancel()
            del self._asleep[over]


def _end(over: "asyncio.Future[None]") -> None:
    if not over.done():
        over.set_result(None)


def _gone() -> ExecutionError:
    return ExecutionError("the executor's process is gone", fatal=True, blameless=True)


class _Hosted:
    """A loaded variant: its curves, and zeros of the right shape for each batch size met."""

    def __init__(self, loaded: Loaded, profile: Profile, app: App, max_batch: int, quantile: Quantile) -> None:
        self.loaded = loaded
        self.max_batch = max_batch
        self.curve: LatencyCurve = profile.curve(quantile, max_batch)
        self.p95: LatencyCurve = profile.curve("p95", max_batch)
        self._specs = app.outputs
        self._varying = {s.name for s in app.inputs if s.varying} if profile.length else set()
        self._zeros: dict[int, tuple[Tensor, ...]] = {}

    def longest(self, variant: str, inputs: Sequence[Sequence[Tensor]]) -> int:
        """Length that the batch is padded to; 0 where inputs do not vary. Raises ExecutionError for one without."""
        if not self._varying:
            return 0
        varying = [t for tensors in inputs for t in tensors if t.name in self._varying]
        if shapeless := next((t for t in varying if len(t.shape) < 2), None):
            raise ExecutionError(f"{variant}: input {shapeless.name} is {list(shapeless.shape)}, without a length")
        return max((t.shape[1] for t in varying), default=0)

    def zeros(self, rows: int) -> tuple[Tensor, ...]:
        """Outputs of ``rows`` rows, shared between batches: they are read-only bytes."""
        found = self._zeros.get(rows)
        if found is None:
            found = tuple(
                Tensor(s.name, s.datatype, (rows, *s.row_shape), bytes(rows * s.row_bytes)) for s in self._specs
            )
            self._zeros[rows] = found
        return found


def _check_rows(variant: str, inputs: Sequence[Sequence[Tensor]], rows: int) -> None:
    """Rows of the queries' first tensors add up to ``rows``; queries without tensors count as they were announced."""
    if not all(inputs):
        return
    held = sum(sum(tensors[0].shape[:1]) for tensors in inputs)
    if held != rows:
        raise ExecutionError(f"{variant}: the inputs hold {held} rows, {rows} announced")
