"""Several processes with a copy of the model each: how they meet, and what they exchange.

Gradients are accumulated by each rank alone and summed once for an update, in a few large pieces.
torch's DistributedDataParallel would sum them during the last backward pass; but then a rank that
runs out of memory there, and tries again, leaves the others waiting, and a rank without a batch has
no backward pass at all.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from lightconv.train.group import Compute, Group
from lightconv.train.launch import EXIT_LOST, STORE, Place, clear_orphaned, watch_parent

# How long a rank waits for another: in a collective (rank 0 may be writing a checkpoint), at first.
TIMEOUT = timedelta(minutes=30)
MEETING = timedelta(minutes=10)
PAUSE = 0.05
# Gradients are summed in pieces of about so many bytes: large enough for the network, and the next
# is put together while one is under way.
PIECE = 64 << 20
# Where the rank that failed first leaves its number and its exit code.
FAILED = "failed"


class LostError(ConnectionError):
    """The other ranks cannot be reached."""


@contextmanager
def join(
    place: Place | None,
    device: torch.device,
    env: Mapping[str, str],
    *,
    kind: "type[Replicas] | None" = None,
    stop: Callable[[], int] = lambda: 0,
    exit_code: Callable[[BaseException], int] = lambda error: 1,
) -> Iterator[Group]:
    """The group of this process, which has left it when the block ends.

    kind       how several ranks share the work: Replicas unless given
    stop       0, or the exit code of who wants to stop before all have met
    exit_code  what the process ends with for an error

    When a rank fails, the others end with its exit code (SystemExit) and leave the word to it.
    """
    if place is None or place.size == 1:
        yield Group()
        return
    watch_parent(env)
    store: Store | None = None
    try:
        with _contact():
            store = meet(_open_store(place, env), place, stop=stop)
            _start(store, place, device)
        yield (kind or Replicas)(place, device, store)
    except (Exception, KeyboardInterrupt) as error:
        code = _other_code(store, place, error, exit_code(error), launched=STORE in env)
        if code is None:
            raise
        raise SystemExit(code) from None
    finally:
        if dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()
        clear_orphaned(env)


def meet(store: Store, place: Place, *, stop: Callable[[], int] = lambda: 0) -> PrefixStore:
    """The store, under a name that the processes of this attempt share and no earlier one had.

    torchrun may give restarted processes the store of those before, where the addresses of the dead
    still stand, and its count of restarts may differ between machines. So each rank says a new
    word, rank 0 lists what it hears, and all go when each has found its own word in the same list.
    """
    rank, mine = place.rank, secrets.token_hex(8)
    words = [f"word/{other}" for other in range(place.size)]
    heard = [f"heard/{other}" for other in range(place.size)]
    said: dict[str, str] = {}

    def say(key: str, text: str) -> None:
        if said.get(key) != text:
            said[key] = text
            store.set(key, text)

    def read(*keys: str) -> list[str]:
        """What all of these say, once they do."""
        return [store.get(key).decode() for key in keys] if store.check(list(keys)) else []

    def with_mine(key: str) -> str | None:
        for text in read(key):
            parts = text.split(",")
            return text if len(parts) == place.size and parts[rank] == mine else None
        return None

    say(words[rank], mine)
    deadline = time.monotonic() + MEETING.total_seconds()
    while time.monotonic() < deadline:
        if code := stop():
            raise SystemExit(code)
        if rank == 0 and (found := read(*words)):
            listed = ",".join(found)
            say("list", listed)
            if read(*heard) == [listed] * place.size:
                say("go", listed)
        if own := with_mine("list"):
            say(heard[rank], own)
        if go := with_mine("go"):
            return PrefixStore(hashlib.sha256(go.encode()).hexdigest()[:16], store)
        time.sleep(PAUSE)
    raise LostError(
        f"process {rank} waited {MEETING.total_seconds():.0f} s for the others, expected "
        f"{place.size} to begin. Look at what became of them"
    )


class Replicas(Group):
    """Ranks that have the whole model each."""

    def __init__(self, place: Place, device: torch.device, store: Store) -> None:
        self.rank, self.size = place.rank, place.size
        self.device = device
        self._store = store
        self._calls = 0

    def sum(self, values: Tensor) -> Tensor:
        """values [n] float64 -> their sums over all ranks [n], on the device they are on."""
        values = values.clone()
        with _contact():
            dist.all_reduce(values)
        return values

    def agree(self, code: int) -> int:
        """The largest `code` of any rank; also a place where all wait for each other."""
        largest = torch.tensor([code])
        with _contact():
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def tell(self, text: str | None) -> str | None:
        """The text of the first rank that has one, on every rank; None if none has."""
        left = self.agree(0 if text is None else self.size - self.rank)
        if left == 0:
            return None
        key = self._key("tell")
        with _contact():
            if self.rank == self.size - left:
                assert text is not None
                self._store.set(key, text)
            return self._store.get(key).decode()

    def first(self, compute: Compute, stop: Callable[[], bool]) -> float:
        """What rank 0 computes, on every rank.

        The others look for the result from time to time: a collective would have a time limit.
        """
        key = self._key("first")
        hurry = f"{key}/hurry"
        if self.rank == 0:
            found = compute(lambda: stop() or self._has(hurry))
            with _contact():
                self._store.set(key, found.hex())
            return found
        told = False
        while not self._has(key):
            if self._has(FAILED):
                raise LostError("another process has failed")
            if stop() and not told:
                self._store.set(hurry, "yes")
                told = True
            time.sleep(PAUSE)
        return float.fromhex(self._store.get(key).decode())

    def sum_gradients(self, model: nn.Module) -> None:
        """Makes each gradient its sum over all ranks; None counts as zero."""
        under_way = []
        for piece in pieces([p for p in model.parameters() if p.requires_grad], PIECE):
            flat = torch.cat([_gradient(parameter).flatten() for parameter in piece])
            # The sums are read where they arrive.
            parts = flat.split([parameter.numel() for parameter in piece])
            for parameter, part in zip(piece, parts, strict=True):
                parameter.grad = part.view_as(parameter)
            with _contact():
                under_way.append(dist.all_reduce(flat, async_op=True))
        with _contact():
            for work in under_way:
                work.wait()

    def _key(self, what: str) -> str:
        """All ranks make the same calls, so they count alike."""
        self._calls += 1
        return f"{what}/{self._calls}"

    def _has(self, key: str) -> bool:
        with _contact():
            return self._store.check([key])


def pieces(parameters: Sequence[Tensor], size: int) -> Iterator[list[Tensor]]:
    """Neighbours of one type, together about `size` bytes, a larger one alone."""
    piece: list[Tensor] = []
    total = 0
    for parameter in parameters:
        if piece and (total + parameter.nbytes > size or parameter.dtype != piece[0].dtype):
            yield piece
            piece, total = [], 0
        piece.append(parameter)
        total += parameter.nbytes
    if piece:
        yield piece


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _open_store(place: Place, env: Mapping[str, str]) -> Store:
    if STORE in env:
        return FileStore(env[STORE], place.size)
    found = rendezvous("env://", place.rank, place.size, timeout=MEETING)
    store: Store = next(iter(found))[0]
    return store


def _start(store: Store, place: Place, device: torch.device) -> None:
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(
        backend, store=store, rank=place.rank, world_size=place.size, timeout=TIMEOUT
    )
    # Who is through may still be waited for, and one that fails before that is no clean end.
    dist.all_reduce(torch.zeros(1))


@contextmanager
def _contact() -> Iterator[None]:
    """What goes wrong between ranks is a LostError."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0][:200]
        raise LostError(f"contact with the other processes was lost: {reason}") from error


def _other_code(
    store: Store | None, place: Place, error: BaseException, code: int, *, launched: bool
) -> int | None:
    """The exit code of the rank that failed first; None if that is this one, which then says so."""
    lost = _is_lost(error)
    if store is None:
        return None
    mine = f"{place.rank} {code}"
    try:
        if lost and launched and not store.check([FAILED]):
            return EXIT_LOST
        found = store.compare_set(FAILED, "", mine).decode()
    except RuntimeError:
        # Rank 0 had the store, and is gone: it has spoken, or whoever started it will.
        return code if lost else None
    return None if found == mine else int(found.split()[1])


def _is_lost(error: BaseException | None) -> bool:
    """Whether an error is a LostError, or was made of one."""
    while error is not None:
        if isinstance(error, LostError):
            return True
        error = error.__cause__
    return False
