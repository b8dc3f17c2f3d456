"""The object store that a deployment names, off the event loop: reads what queries refer to, keeps results.

Rules. Each access has a thread of its own, of which there are a few at most, and a time after which it is given up (its
thread is free again once the store lets go of it). At most as much is read as a reference says, and what does not have
its digest is refused. What is held at once is bounded. Files are read without fsspec, and only plain ones whose true
place, links followed, is below the prefix. No error repeats what a store's client says: it may hold secrets.
"""

import asyncio
import hashlib
import os
import stat
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, TypeVar

from sluicegate.domain.errors import ConfigurationError, SluiceError
from sluicegate.streams.objects.claims import Claim, ObjectRules

T = TypeVar("T")

_FILE = "file://"
_CHUNK = 1 << 20


class ObjectError(SluiceError):
    """An object cannot be had, or is another than was said; or cannot be written."""


class ObjectStore:
    """Reads below ``rules.prefixes``; writes below ``results`` where that is given.

    ``timeout``: seconds that an access may take. ``threads``: accesses at once. ``held_bytes``: what is read and not
    released yet. Raises ConfigurationError where what an address needs is not installed.
    """

    def __init__(
        self,
        rules: ObjectRules,
        *,
        results: str | None = None,
        timeout: float = 5.0,
        threads: int = 8,
        held_bytes: int = 512 << 20,
    ) -> None:
        self.rules = rules
        self.results = results
        self._timeout = timeout
        self._threads = asyncio.Semaphore(threads)
        self._room = held_bytes
        self._most = held_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        for place in self._readable():
            _check_installed(place)

    def writable(self) -> bool:
        """Whether results can be written where that is a folder, which is made; other stores show it when asked."""
        if self.results is None or not self.results.startswith(_FILE):
            return True
        folder = self.results.removeprefix(_FILE)
        with suppress(OSError):
            Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.access(folder, os.W_OK | os.X_OK)

    async def read(self, claim: Claim, *, within: float) -> bytes:
        """The object. It counts as held until it is released.

        ``within``: seconds that it may wait for others to be released. Raises ObjectError.
        """
        prefix = next((p for p in self._readable() if claim.ref.startswith(p)), None)
        if prefix is None:
            raise ObjectError(f"{claim.ref:.200} is not below what is allowed")
        try:
            async with asyncio.timeout(max(0.0, within)):
                await self._take(claim.bytes)
        except TimeoutError:
            raise ObjectError(f"{claim.ref:.200}: too much else was held; see objects.held_bytes") from None
        try:
            return await self._apart(claim.ref, lambda: _read(claim, prefix))
        except BaseException:
            self.release(claim.bytes)
            raise

    def release(self, size: int) -> None:
        """So many bytes that were read are held no longer."""
        self._room += min(size, self._most)
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= self._room):
            wanted, waiter = self._waiting.popleft()
            if not waiter.done():
                self._room -= wanted
                waiter.set_result(None)

    async def write(self, app: str, data: bytes | memoryview) -> Claim:
        """Keep a result of ``app``, named by its content. Raises ObjectError."""
        assert self.results is not None  # asked only where there is such a place
        if len(data) > self.rules.max_bytes:
            raise ObjectError(f"{len(data)} bytes are more than objects.max_bytes, {self.rules.max_bytes}")
        place = f"{self.results}{app}/"
        return await self._apart(place, lambda: _keep(place, data), "written")

    def _readable(self) -> tuple[str, ...]:
        return (*self.rules.prefixes, *([self.results] if self.results is not None else []))

    async def _take(self, size: int) -> None:
        size = min(size, self._most)
        if not self._waiting and size <= self._room:
            self._room -= size
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            # Where it was given room it gives it back; else it may have stood before others that have room.
            self.release(size if not waiter.cancelled() else 0)
            raise

    async def _apart(self, ref: str, work: Callable[[], T], done: str = "had") -> T:
        """``work`` in a thread that nobody waits for at the end; the object is ``done`` by it."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._threads.acquire()
                loop = asyncio.get_running_loop()
                future: asyncio.Future[T] = loop.create_future()
                thread = threading.Thread(target=self._run, args=(work, loop, future), daemon=True, name="objects")
                try:
                    thread.start()
                except BaseException:
                    self._threads.release()
                    raise
                return await future
        except TimeoutError:
            raise ObjectError(f"{ref:.200} cannot be {done} within {self._timeout:g} s") from None
        except ObjectError:
            raise
        except Exception as error:  # each store raises its own
            raise ObjectError(f"{ref:.200} cannot be {done} ({type(error).__name__})") from None

    def _run(self, work: Callable[[], T], loop: asyncio.AbstractEventLoop, future: "asyncio.Future[T]") -> None:
        result: T | None = None
        error: Exception | None = None
        try:
            result = work()
        except Exception as raised:  # told to who waits, whatever it is
            error = raised

        def settle() -> None:
            self._threads.release()
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        with suppress(RuntimeError):  # the loop is gone, and with it who waited
            loop.call_soon_threadsafe(settle)


def _read(claim: Claim, prefix: str) -> bytes:
    digest = hashlib.sha256()
    parts, left = [], claim.bytes + 1
    try:
        with _opened(claim.ref, prefix) as source:
            while left and (part := source.read(min(_CHUNK, left))):
                parts.append(part)
                digest.update(part)
                left -= len(part)
    except FileNotFoundError:
        raise ObjectError(f"{claim.ref:.200} is not there") from None
    found = claim.bytes + 1 - left
    if found != claim.bytes:
        raise ObjectError(f"{claim.ref:.200} has {'more' if found > claim.bytes else 'fewer'} than {claim.bytes} bytes")
    if digest.hexdigest() != claim.sha256:
        raise ObjectError(f"{claim.ref:.200} has SHA-256 {digest.hexdigest()}, not {claim.sha256}")
    return b"".join(parts)


def _opened(ref: str, prefix: str) -> IO[bytes]:
    if not ref.startswith(_FILE):
        opened: IO[bytes] = _fsspec().open(ref, "rb").open()
        return opened
    # Not to wait for a writer where it is a pipe; what it is, is looked at before anything is read.
    descriptor = os.open(ref.removeprefix(_FILE), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    try:
        place = Path(f"/proc/self/fd/{descriptor}")
        true = place.resolve() if place.exists() else Path(ref.removeprefix(_FILE)).resolve()
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ObjectError(f"{ref:.200} is no plain file")
        if not true.is_relative_to(Path(prefix.removeprefix(_FILE)).resolve()):
            raise ObjectError(f"{ref:.200} is a link that leads out of what is allowed")
    except BaseException:
        file.close()
        raise
    return file


def _keep(place: str, data: bytes | memoryview) -> Claim:
    digest = hashlib.sha256(data).hexdigest()
    claim = Claim(f"{place}{digest}", digest, len(data))
    try:
        _write(claim, data)
    except Exception as error:  # each store raises its own
        raise ObjectError(f"{claim.ref:.200} cannot be written ({type(error).__name__})") from None
    return claim


def _write(claim: Claim, data: bytes | memoryview) -> None:
    if not claim.ref.startswith(_FILE):
        with _fsspec().open(claim.ref, "wb") as into:
            into.write(bytes(data))
        return
    path = Path(claim.ref.removeprefix(_FILE))
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        unfinished.write_bytes(data)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _check_installed(place: str) -> None:
    """Raise ConfigurationError where what reads there is not installed."""
    scheme = place.partition("://")[0]
    if place.startswith(_FILE):
        return
    try:
        _fsspec().get_filesystem_class(scheme)
    except ImportError as error:
        needed = (error.name or str(error)).partition(".")[0][:80]
        raise ConfigurationError(f"objects: {scheme}:// needs a package beside fsspec ({needed}); install it") from None


def _fsspec() -> Any:
    try:
        import fsspec
    except ImportError:
        raise ConfigurationError("objects: fsspec is not installed; pip install 'sluicegate[objects]'") from None
    return fsspec
