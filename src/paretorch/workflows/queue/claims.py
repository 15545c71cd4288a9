"""Jobs that any number of workers share: each is claimed by one worker at a time, and taken over if that worker falls silent.

Claims are files, on any file system that creates a file exclusively; no locks are used. A job's claims are files `.claim-1`,
`.claim-2`, ... in its folder. Whoever creates the next number owns the job. No file is ever removed or renamed, so two workers
that take over the same silent claim both try to create the same number, and one of them fails. The owner writes a beat into its
file; it is silent if others see no change for `patience()` seconds of their own clocks. An owner that was only slow sees the
higher number at its next beat, and has lost the claim.

No clock is compared with another's. So machines whose clocks differ, containers that share a host name, and stopped processes
are all judged alike. Only what is certain is used to be faster: a process of the same machine that is gone needs no patience.
"""

import contextlib
import functools
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path

from paretorch.errors import ConfigError, PareError
from paretorch.training.files import write_error

PATIENCE_VARIABLE = "PARE_PATIENCE"
_PATIENCE = 60.0
_BEATS_PER_PATIENCE = 12


def patience() -> float:
    """Seconds of silence after which a worker counts as dead: 60, or the environment's PARE_PATIENCE."""
    text = os.environ.get(PATIENCE_VARIABLE, "")
    try:
        seconds = float(text) if text else _PATIENCE
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"{PATIENCE_VARIABLE}={text!r}: give the seconds of silence that end a worker, such as 60")
    return seconds


def beat_interval() -> float:
    """Seconds between two beats of a living worker."""
    return patience() / _BEATS_PER_PATIENCE


_LOOKS = 4
"""Looks, at least, before silence is believed where storages are slow."""
_SLOWER = 4
"""How many times as long as the slowest beats of late somebody may be silent."""
_MOST_PATIENCE = 6
"""Times the patience, at most, that slow beats are waited for."""
_UNMEASURED = 2
"""Times the patience that is waited while no interval of beats is known."""
_GAPS = 64
"""Beats that count as of late."""


class Silence:
    """Watches the beats of others.

    Args:
        limit: Seconds without a change after which one counts as dead; by default `patience()`.
        clock: The observer's clock, in seconds; it must not jump.
        is_slow: Beats go through a storage that may keep writers and readers waiting. One look then counts for a quarter of the
            limit at most, since the observer may have waited itself; and if beats come slowly, the limit is four times their
            interval, up to six times itself. Until two beats have told an interval, it is twice itself.
    """

    def __init__(
        self, limit: float | None = None, clock: Callable[[], float] = time.monotonic, *, is_slow: bool = False
    ) -> None:
        self._limit = patience() if limit is None else limit
        self._clock, self._is_slow = clock, is_slow
        self._seen: dict[Hashable, tuple[Hashable, float, float]] = {}  # the beat, how long it stands, the last look
        self._gaps: deque[float] = deque(maxlen=_GAPS)

    def lasts(self, who: Hashable, beat: Hashable) -> bool:
        """Whether `who` has shown this same beat for too long."""
        now = self._clock()
        if who not in self._seen:
            self._seen[who] = (beat, 0.0, now)
            return False
        known, silent, looked = self._seen[who]
        silent += min(now - looked, self._limit / _LOOKS) if self._is_slow else now - looked
        if known != beat:
            self._gaps.append(silent)
            silent = 0.0
        self._seen[who] = (beat, silent, now)
        return known == beat and silent >= self._patience()

    def _patience(self) -> float:
        if not self._is_slow:
            return self._limit
        if not self._gaps:
            return _UNMEASURED * self._limit
        measured = _SLOWER * max(self._gaps)
        return min(max(self._limit, measured), _MOST_PATIENCE * self._limit)


_BEGINS = ".claim-"
_FREE = "free"
LOST_CODE = 75
"""Exit code of a worker that ends since another one took its job over."""


class Claims:
    """Takes the jobs that nobody works at.

    Args:
        silence: Watches the beats of other workers.
    """

    def __init__(self, silence: Silence | None = None) -> None:
        self._silence = silence or Silence()

    def take(self, folder: Path, on_lost: Callable[[str], None] | None = None) -> "Claim | None":
        """Take the job of this folder; None while another worker has it.

        Args:
            folder: The folder of the job, which is made if it is missing.
            on_lost: Called from the beat's thread with a sentence if another worker takes the job over; by default the
                process ends at once, so that it writes nothing more.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            number, content = _last(folder)
            owner = content.get("owner", "")
            if number and owner != _FREE and not self._is_dead(folder, number, content):
                return None
            mine = _create(folder / f"{_BEGINS}{number + 1}")
        except OSError as error:
            raise write_error(folder, error) from error
        if mine is None:
            return None
        return Claim(folder, number + 1, mine, "" if owner in ("", _FREE) else owner, on_lost or _end)

    def _is_dead(self, folder: Path, number: int, content: Mapping[str, str]) -> bool:
        return is_gone(content) or self._silence.lasts(str(folder), json.dumps([number, content]))


def adopt(folder: Path, number: int, on_lost: Callable[[str], None] | None = None) -> "Claim":
    """Go on with a claim that the process which started this one has taken; that one stops beating once it sees this.

    Args:
        folder: The folder of the job.
        number: The claim's number.
        on_lost: As for `Claims.take`.
    """
    mine = _owner()
    claim = Claim(folder, number, mine, "", on_lost or _end)
    claim.check()
    try:
        _write(folder / f"{_BEGINS}{number}", {**mine, "beat": 0})
    except OSError as error:
        raise write_error(folder, error) from error
    return claim


class Claim:
    """A job in one's hands, with a thread that beats; `release` it at the end.

    Attributes:
        number: The claim's number; a process that is started for the job can `adopt` it.
        taken_from: The worker that fell silent, as "host, process 12"; empty if the job was free.
    """

    def __init__(
        self, folder: Path, number: int, owner: dict[str, str], taken_from: str, on_lost: Callable[[str], None]
    ) -> None:
        self.folder, self.number, self.taken_from = folder, number, taken_from
        self._owner, self._on_lost = owner, on_lost
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Whether another worker has taken the job over."""
        return (self.folder / f"{_BEGINS}{self.number + 1}").exists()

    def check(self) -> None:
        """Raise if another worker has taken the job over."""
        if self.lost:
            raise PareError(self._lost_message())

    def follows_silence(self) -> bool:
        """Whether an earlier owner fell silent, which may be stopped and not dead."""
        earlier = (_read(self.folder / f"{_BEGINS}{number}") for number in range(1, self.number))
        return any(content.get("owner") != _FREE for content in earlier)

    def abandon(self) -> None:
        """Stop beating, without giving the job back: whoever adopted the claim may still be at work."""
        self._over.set()
        self._thread.join()

    def release(self) -> None:
        """Give the job back."""
        self.abandon()
        with contextlib.suppress(OSError):
            _write(self.folder / f"{_BEGINS}{self.number}", {"owner": _FREE})

    def _beat(self) -> None:
        count, own = 0, self._owner["token"]
        while not self._over.wait(beat_interval()):
            count += 1
            if self.lost:
                self._on_lost(self._lost_message())
                return
            if _read(self.folder / f"{_BEGINS}{self.number}").get("token", own) != own:
                return  # adopted by the process that was started for the job
            with contextlib.suppress(OSError):  # a full disk or a server that is away: others see silence
                _write(self.folder / f"{_BEGINS}{self.number}", {**self._owner, "beat": count})

    def _lost_message(self) -> str:
        return f"{self.folder} was taken over by another worker while this one was silent; the other one finishes it"


@contextlib.contextmanager
def claimed(claims: Claims, folder: Path) -> Iterator[Claim | None]:
    """Have a job while inside; None if another worker has it."""
    claim = claims.take(folder)
    try:
        yield claim
    finally:
        if claim is not None:
            claim.release()


def owner_of(folder: Path) -> str:
    """Who has the job, as "host, process 12"; empty if nobody has."""
    owner = _last(folder)[1].get("owner", "")
    return "" if owner == _FREE else owner


def _end(sentence: str) -> None:
    print(f"pare: {sentence}", file=sys.stderr, flush=True)
    os._exit(LOST_CODE)


def _last(folder: Path) -> tuple[int, dict[str, str]]:
    """Number and content of the highest claim; 0 if there is none, and no content while it is being written."""
    names = (path.name.removeprefix(_BEGINS) for path in folder.glob(f"{_BEGINS}*"))
    number = max((int(name) for name in names if name.isdecimal()), default=0)
    return number, _read(folder / f"{_BEGINS}{number}")


def _read(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _owner() -> dict[str, str]:
    """Who this process is: for readers, for processes of the same machine, and by a token of its own."""
    return {
        "owner": f"{socket.gethostname()}, process {os.getpid()}",
        "token": secrets.token_hex(8),
        "machine": _machine(),
        "process": str(os.getpid()),
        "begun": _begun(str(os.getpid())),
    }


@functools.cache
def _machine() -> str:
    """What tells this machine, since it was started, and its container from all others; empty if that is unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return ""


def _begun(process: str) -> str:
    """When a process of this machine was started, in the kernel's ticks; empty if it is gone, or a zombie."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def is_gone(content: Mapping[str, str]) -> bool:
    """Whether the owner of a claim was a process of this machine that certainly does not run any more."""
    machine, process, begun = (content.get(key, "") for key in ("machine", "process", "begun"))
    return bool(machine and begun) and machine == _machine() and _begun(process) != begun


def _create(path: Path) -> dict[str, str] | None:
    """Create the claim, whole, unless it is there; returns its owner."""
    owner = _owner()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        return None
    with os.fdopen(descriptor, "wb") as file:
        file.write(json.dumps({**owner, "beat": 0}).encode())
    return owner


def _write(path: Path, content: Mapping[str, object]) -> None:
    """Write in place, since a rename would bring back a file; a reader that meets half of it sees a beat that changes."""
    with open(path, "r+b") as file:
        file.write(json.dumps(content).encode())
        file.truncate()
