"""Ranks that train together: one process, or several with a copy of the model each.

Each rank accumulates its gradients alone, and these are summed once per update in a few large
pieces, each as soon as the last backward pass has completed it. DistributedDataParallel does the
same, but there a rank that runs out of memory and retries leaves the others waiting, and a rank
without a batch has no backward pass at all.
"""

import hashlib
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from lightconv.processes import PARENT, watch_parent
from lightconv.train.launch import EXIT_LOST, MET, PAUSE, STORE, TRAINING, RankPlace

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)
Compute = Callable[[Callable[[], bool]], float]

# Longest wait in a collective (rank 0 may be writing a checkpoint), and at the start.
TIMEOUT = timedelta(minutes=30)
MEETING = timedelta(minutes=10)
# Bytes of gradients summed at once: large enough for the network, small enough that most of them
# are under way before the backward pass has ended.
PIECE = 16 << 20
# Key under which the rank that failed first leaves its number and its exit code.
FAILED = "failed"


class LostError(ConnectionError):
    """The other ranks cannot be reached."""


class Group:
    """Communication between ranks; every rank calls the same methods in the same order.

    rank      number of this process, from 0 on; rank 0 writes
    size      number of ranks
    lockstep  True if all ranks must run the model equally often, because each has a part of it
    """

    rank: int = 0
    size: int = 1
    lockstep: bool = False

    def prepare(self, model: nn.Module) -> None:
        """Shards the model, if the group does; called before an optimiser is built."""

    def begin(self) -> None:
        """Tells the launcher that updates begin: from now on Ctrl-C saves."""

    def sum(self, values: Tensor) -> Tensor:
        """values [n] float64 -> their sums over all ranks [n], on the same device."""
        return values

    def agree(self, code: int) -> int:
        """The largest `code` of any rank; also a barrier."""
        return code

    def tell(self, text: str | None) -> str | None:
        """The text of the first rank that has one, on every rank; None if none has."""
        return text

    def first(self, compute: Compute, stop: Callable[[], bool]) -> float:
        """The result of rank 0 on every rank; the others wait, however long it takes.

        compute  called on rank 0 with a function that is true once any rank wants to stop
        stop     true once this rank wants to stop
        """
        return compute(stop)

    def together(self, items: Iterable[T]) -> Iterator[T | None]:
        """The items of this rank; in lockstep None follows while other ranks still have some."""
        yield from items

    def last_pass(self, model: nn.Module) -> AbstractContextManager[None]:
        """Open during the backward pass after which gradients are complete: their sums may begin.

        If that pass fails, it may be opened again; gradients that were complete stay as they were.
        """
        return nullcontext()

    def sum_gradients(self, model: nn.Module) -> None:
        """Makes each gradient its sum over all ranks, once per update; None counts as zero."""

    def norm(self, model: nn.Module) -> Tensor:
        """The norm of the whole gradient [], after `sum_gradients`; the same on every rank."""
        return torch.nn.utils.get_total_norm(gradients(model))

    def whole(self, model: M) -> M | None:
        """The model with all of its parameters; None on ranks above 0 if it is sharded."""
        return model


class Replicas(Group):
    """Ranks with the whole model each."""

    def __init__(self, place: RankPlace, device: torch.device, store: Store) -> None:
        self.rank, self.size = place.rank, place.size
        self.device = device
        self._store = store
        self._calls = 0
        self._sums: _Sums | None = None

    def begin(self) -> None:
        with _contact():
            self._store.set(TRAINING, "1")

    def sum(self, values: Tensor) -> Tensor:
        values = values.clone()
        with _contact():
            dist.all_reduce(values)
        return values

    def agree(self, code: int) -> int:
        largest = torch.tensor([code])
        with _contact():
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def tell(self, text: str | None) -> str | None:
        found: list[str | None] = [None] * self.size
        with _contact():
            dist.all_gather_object(found, text)
        return next((each for each in found if each is not None), None)

    def first(self, compute: Compute, stop: Callable[[], bool]) -> float:
        # The others poll for the result: a collective would have a time limit.
        self._calls += 1  # all ranks make the same calls, so they count alike
        key = f"first/{self._calls}"
        hurry = f"{key}/hurry"
        if self.rank == 0:
            found = compute(lambda: stop() or self._has(hurry))
            with _contact():
                self._store.set(key, found.hex())
            return found
        while not self._has(key):
            if self._has(FAILED):
                raise LostError("another process has failed")
            if stop() and not self._has(hurry):
                self._store.set(hurry, "yes")
            time.sleep(PAUSE)
        return float.fromhex(self._store.get(key).decode())

    @contextmanager
    def last_pass(self, model: nn.Module) -> Iterator[None]:
        self._sums = self._sums or _Sums(model)
        with self._sums.watched():
            yield

    def sum_gradients(self, model: nn.Module) -> None:
        sums, self._sums = self._sums or _Sums(model), None
        sums.finish()

    def _has(self, key: str) -> bool:
        with _contact():
            return self._store.check([key])


class _Sums:
    """Sums of one update: pieces of gradients, last layers first, in one order on every rank."""

    def __init__(self, model: nn.Module) -> None:
        chosen = [p for p in model.parameters() if p.requires_grad]
        self.left = deque(pieces(chosen[::-1], PIECE))
        self.under_way: list[tuple[list[Tensor], Tensor, dist.Work]] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Each piece is sent when a backward pass has reached all of its parameters."""
        complete: set[int] = set()

        def note(parameter: Tensor) -> None:
            complete.add(id(parameter))
            while self.left and complete.issuperset(map(id, self.left[0])):
                self.send()

        with ExitStack() as hooks:
            for parameter in chain(*self.left):
                hooks.callback(parameter.register_post_accumulate_grad_hook(note).remove)
            yield

    def send(self) -> None:
        piece = self.left.popleft()
        flat = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in piece]
        )
        for parameter in piece:
            parameter.grad = None
        with _contact():
            self.under_way.append((piece, flat, dist.all_reduce(flat, async_op=True)))

    def finish(self) -> None:
        while self.left:
            self.send()
        for piece, flat, work in self.under_way:
            with _contact():
                work.wait()
            # Gradients become views of the sums.
            for parameter, part in zip(piece, flat.split([p.numel() for p in piece]), strict=True):
                parameter.grad = part.view_as(parameter)


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def gather(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Sharded tensors as a whole on the CPU of rank 0, empty on other ranks; others as they are."""

    def whole(tensor: Tensor) -> Tensor:
        if not hasattr(tensor, "full_tensor"):
            return tensor
        full: Tensor = tensor.full_tensor()
        return full.cpu() if torch.distributed.get_rank() == 0 else full.new_empty(0)

    return {name: whole(tensor) for name, tensor in tensors.items()}


def shard(whole: Tensor, like: Tensor) -> Tensor:
    """This rank's part of `whole` if `like` is sharded, else all of it."""
    if not hasattr(like, "full_tensor"):
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements)


@contextmanager
def join(
    place: RankPlace | None,
    device: torch.device,
    env: Mapping[str, str],
    *,
    kind: type[Replicas] = Replicas,
    stop: Callable[[], int] = lambda: 0,
    exit_code: Callable[[BaseException], int] = lambda error: 1,
) -> Iterator[Group]:
    """The group of this process, left when the block ends.

    stop       0, or the exit code of a stop that came before all have met
    exit_code  exit code of the process for an error

    When a rank fails, the others end with its exit code (SystemExit) and let it report the error.
    """
    if place is None or place.size == 1:
        yield Group()
        return
    if PARENT in env or "TORCHELASTIC_RUN_ID" in env:
        watch_parent(int(env.get(PARENT, os.getppid())))
    store: Store | None = None
    try:
        with _contact():
            store = meet(_open_store(place, env), place, stop=stop)
            if device.type == "cuda":
                torch.cuda.set_device(device)
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                store=store,
                rank=place.rank,
                world_size=place.size,
                timeout=TIMEOUT,
            )
            # Barrier: nobody continues before every rank has joined.
            dist.all_reduce(torch.zeros(1))
            store.set(MET, "1")
        yield kind(place, device, store)
    except (Exception, KeyboardInterrupt) as error:
        code = _other_code(store, place, error, exit_code(error), launched=STORE in env)
        if code is None:
            raise
        raise SystemExit(code) from None
    finally:
        if dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()


def meet(store: Store, place: RankPlace, *, stop: Callable[[], int] = lambda: 0) -> PrefixStore:
    """The store under a prefix that the processes of this attempt share and no earlier one had.

    torchrun may give restarted processes the store of those before, with the addresses of dead
    ranks in it, and its count of restarts may differ between machines. So each rank sets a new
    word, rank 0 lists the words, and all continue once each has found its word in the same list.
    """
    rank, mine = place.rank, secrets.token_hex(8)
    words, heard = ([f"{key}/{n}" for n in range(place.size)] for key in ("word", "heard"))
    said: dict[str, str] = {}

    def say(key: str, text: str) -> None:
        if said.get(key) != text:
            said[key] = text
            store.set(key, text)

    def read(*keys: str) -> list[str]:
        """Values of all these keys; empty until all are set."""
        return [store.get(key).decode() for key in keys] if store.check(list(keys)) else []

    def with_mine(key: str) -> str:
        (text,) = read(key) or [""]
        parts = text.split(",")
        return text if len(parts) == place.size and parts[rank] == mine else ""

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


def pieces(parameters: Sequence[Tensor], size: int) -> Iterator[list[Tensor]]:
    """Consecutive parameters of one dtype, at most `size` bytes together; a larger one alone."""
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


def _open_store(place: RankPlace, env: Mapping[str, str]) -> Store:
    if STORE in env:
        # A FileStore in a missing folder waits for minutes, and no other thread runs meanwhile.
        if not Path(env[STORE]).parent.is_dir():
            raise SystemExit(EXIT_LOST)
        return FileStore(env[STORE], place.size)
    store: Store = next(iter(rendezvous("env://", place.rank, place.size, timeout=MEETING)))[0]
    return store


@contextmanager
def _contact() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0][:200]
        raise LostError(f"contact with the other processes was lost: {reason}") from error


def _other_code(
    store: Store | None, place: RankPlace, error: BaseException, code: int, *, launched: bool
) -> int | None:
    """Exit code of the rank that failed first; None if it is this one, which reports the error."""
    if store is None:
        return None
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, LostError):
        cause = cause.__cause__
    lost, mine = cause is not None, f"{place.rank} {code}"
    try:
        if lost and launched and not store.check([FAILED]):
            return EXIT_LOST
        found = store.compare_set(FAILED, "", mine).decode()
    except RuntimeError:
        # Rank 0 hosted the store and has exited; it or its launcher reports the error.
        return code if lost else None
    return None if found == mine else int(found.split()[1])
