"""Time candidates on the device: graph replays between events, on rotating, cold, poisoned buffers.

One sample of a contender is one or more replays of a graph that holds one call for each of several
replicas, in random order. Before each replay the outputs are poisoned, then the L2 is filled with
other, clean data (``cold``); both lie before the first event. Work queued before that event keeps
the device busy while the host queues the rest, so launch jitter stays outside. Inputs of role
``inout`` are restored before each replay, outside the timed part; a replay uses each replica once.

Every call of a replay writes to outputs and workspaces of its own, so that none finds a result.
``hot`` calls have their inputs in common, and all that they touch together fits in half of the L2,
or else there is one call a replay; a replay that is not timed goes before, to fetch the inputs.

Shared memory is poisoned before each replay. Within one a kernel could still find what an earlier
call left there: so single calls are timed too, and who is much slower by itself has cheated.
"""

from __future__ import annotations

import math
import random
import secrets
import statistics
import time
from typing import Any

from kernelsearch.errors import CheatedError, LaunchError, NondeterministicError
from kernelsearch.measure import Samples, sample
from kernelsearch.records import Contender, LaunchPlan, TimeReport, TimeRequest, dtype_bytes
from kernelsearch.targets.cuda_context import CudaContext
from kernelsearch.targets.cuda_layout import Item, lay_out
from kernelsearch.targets.cuda_load import BoundCall, LoadedBinary, Placed, launch
from kernelsearch.targets.cuda_nvml import DeviceMonitor
from kernelsearch.targets.cuda_replicas import GUARD_BYTES, ReplicaSet

SPACE_BYTES = 1 << 30
QUEUE_US = 30
END_TO_END_CALLS = 5
MAX_REPLAYS = 64
# A call by itself, after which nothing is left in shared memory, may take so many times what it
# takes among others, and so much more (cold code and address translations, the launch).
ALONE_FACTOR = 2.0
ALONE_SLACK_US = 20.0
ALONE_CALLS = 3
# Outputs of a replay up to this size are compared after each one, larger ones when some are kept.
COMPARED_BYTES = 64 << 20


class _Workspaces:
    """Guarded workspaces of one contender, one for each call of a graph as far as memory allows."""

    def __init__(self, context: CudaContext, plan: LaunchPlan, calls: int) -> None:
        self._context = context
        self._plan = plan
        sizes = [(w, math.prod(w.shape) * dtype_bytes(w.dtype)) for w in plan.workspaces]
        one = sum(size for _, size in sizes) + GUARD_BYTES * len(sizes)
        self._copies = max(1, min(calls, SPACE_BYTES // max(1, one)))
        items = [Item(f"{n}:{w.name}", size) for n in range(self._copies) for w, size in sizes]
        self._layout = lay_out(items, GUARD_BYTES, random.Random(secrets.randbits(64)))
        self._sizes = {w.name: size for w, size in sizes}
        self._block = context.allocate(self._layout.nbytes) if sizes else 0
        self._starts = {s.name: self._block + s.start for s in self._layout.slots}

    @property
    def copies(self) -> int:
        return self._copies

    def placed(self, call: int) -> dict[str, Placed]:
        copy = call % self._copies
        return {
            w.name: Placed(self._starts[f"{copy}:{w.name}"], self._sizes[w.name], w.dtype, w.shape)
            for w in self._plan.workspaces
        }

    def poison(self) -> None:
        if self._block:
            self._context.fill_guard(self._block, self._layout.nbytes)

    def damaged(self) -> list[str]:
        if not self._block:
            return []
        gaps = list(self._layout.gaps())
        broken = self._context.broken([(self._block + g.start, g.nbytes) for g in gaps])
        return [g.name.split(":")[1] for g, bad in zip(gaps, broken, strict=True) if bad]

    def release(self) -> None:
        if self._block:
            self._context.free(self._block)
            self._block = 0


class _Player:
    """One contender, ready to be timed: its calls on the replicas, and the graph of them."""

    def __init__(
        self, context: CudaContext, loaded: LoadedBinary, plan: LaunchPlan, replicas: ReplicaSet,
        what: str, *, hot: bool,
    ) -> None:  # fmt: skip
        self.hot = hot
        self.context, self.loaded, self.replicas, self.what = context, loaded, replicas, what
        self.plan = plan
        loaded.prepare(plan)
        self.spaces = _Workspaces(context, plan, len(replicas.replicas))
        self._calls: dict[int, BoundCall] = {}
        self._graph: Any = None

    def call(self, replica: int) -> BoundCall:
        if replica not in self._calls:
            placed = self.replicas.placed(replica, hot=self.hot) | self.spaces.placed(replica)
            self._calls[replica] = self.loaded.bind(self.plan, placed)
        return self._calls[replica]

    def build(self, order: list[int]) -> None:
        """Build the graph that makes one call on each replica of ``order``, instead of the last."""
        if self._graph is not None:
            self._graph.close()
            self._graph = None
        calls = [self.call(replica) for replica in order]
        # A builder of its own stream: a refused launch must not leave ours in capture.
        builder = self.context.handle.create_graph_builder()
        try:
            builder.begin_building()
            for call in calls:
                launch(self.context, call, builder)
            self._graph = builder.end_building().complete()
        finally:
            builder.close()
        self._graph.upload(self.context.stream)

    def replay(self) -> None:
        self._graph.launch(self.context.stream)

    def release(self) -> None:
        if self._graph is not None:
            self._graph.close()
        self.spaces.release()


class TimedRequest:
    """One time request being worked on."""

    def __init__(
        self, context: CudaContext, request: TimeRequest, loaded: list[LoadedBinary],
        replicas: ReplicaSet, monitor: DeviceMonitor,
    ) -> None:  # fmt: skip
        self._context, self._request, self._replicas = context, request, replicas
        self._monitor = monitor
        self._cold = request.settings.cache == "cold"
        options = {"timing_enabled": True}
        self._events = (
            context.handle.create_event(options), context.handle.create_event(options)
        )  # fmt: skip
        self._players: list[_Player] = []
        self._loaded = loaded
        self._secret = random.Random(secrets.randbits(64))
        self._order: list[int] = []
        self._batches = 0
        self._captured: dict[int, int] = {}
        self._capture_at: dict[int, int] = {}
        # Hashes of what came out, by input set and output.
        self._results: dict[tuple[int, str], int] = {}
        self._first_set = self._secret.randrange(len(request.sets))

    def measure(self) -> TimeReport:
        """Take the samples, capture outputs of random calls, and inspect what was touched."""
        before = self._monitor.snapshot() | self._monitor.other_processes()
        try:
            for contender, loaded in zip(self._request.contenders, self._loaded, strict=True):
                self._add(contender, loaded)
            self._choose_calls()
            samples = self._sample()
            for index in self._capture_at:
                if index not in self._captured:
                    self._batch(0, 1, capture=index)
            ends = tuple(self._end_to_end(player) for player in self._players)
            alone = self._alone_us(samples)
            with self._context.faults("inspecting the buffers"):
                damaged, modified = self._replicas.inspect()
                for player in self._players:
                    damaged += player.spaces.damaged()
                # No right result is left for the next candidate to find.
                self._replicas.poison(len(self._replicas.replicas))
        finally:
            if not self._context.dead:
                for player in self._players:
                    player.release()
        conditions = {
            "before": before, "after": self._monitor.snapshot(),
            "graph_calls": len(self._order), "replicas": len(self._replicas.replicas),
            "batches": self._batches, "dropped": samples.dropped, "sm_mhz": samples.clock,
            "disturbed": samples.disturbed, "alone_us": alone,
            "cache": "swept" if self._cold else "hot",
        }  # fmt: skip
        return TimeReport(
            samples_us=samples.samples_us, end_to_end_us=ends,
            calls_per_sample=samples.calls_per_sample,
            captured_sets=tuple(self._captured[i] for i in sorted(self._captured)),
            cache=self._request.settings.cache, corrupted_guards=tuple(sorted(set(damaged))),
            modified_inputs=tuple(modified), conditions=conditions,
        )  # fmt: skip

    def _add(self, contender: Contender, loaded: LoadedBinary) -> None:
        number = len(self._players)
        what = "timing the candidate" if number == 0 else "timing the incumbent"
        with self._context.faults(what):
            self._players.append(
                _Player(
                    self._context, loaded, contender.plan, self._replicas, what, hot=not self._cold
                )
            )

    # --- how many calls make a graph --------------------------------------------------------

    def _choose_calls(self) -> None:
        """Fix the calls of a graph from the time of a plain call; the slowest contender decides."""
        settings = self._request.settings
        slowest = max(self._plain_call_us(player) for player in self._players)
        # A plain call of a short kernel takes about twice what it takes in a graph.
        wanted = math.ceil(2.5 * settings.min_sample_us / max(slowest, 0.5))
        # A workspace that is used again within a replay would show what was left in it.
        available = min(len(self._replicas.replicas), *(p.spaces.copies for p in self._players))
        if not self._cold:
            scratch = max(p.plan.workspace_bytes for p in self._players)
            room = self._context.l2_bytes // 2 - self._replicas.shared_bytes
            available = min(available, max(1, room // max(1, self._replicas.own_bytes + scratch)))
        sets = len(self._request.sets)
        count = min(available, max(min(sets, available), wanted))
        self._order = list(range(count))
        self._secret.shuffle(self._order)
        for player in self._players:
            order = list(self._order)
            self._secret.shuffle(order)
            with self._context.faults(player.what):
                player.build(order)
        late = max(2, self._request.settings.min_samples)
        for index in range(len(self._request.captures)):
            self._capture_at[index] = self._secret.randrange(2, 2 + late)

    def _plain_call_us(self, player: _Player) -> float:
        context = self._context
        with context.faults(player.what):
            for _ in range(2):
                self._prepare(player, 1)
                context.stream.record(self._events[0])
                launch(context, player.call(0))
                context.stream.record(self._events[1])
                self._events[1].sync()
                # After single calls: what is put back by the end of a replay shows here.
                self._check_state(player)
        return 1000.0 * float(self._events[1] - self._events[0])

    # --- batches ----------------------------------------------------------------------------

    def _prepare(self, player: _Player, count: int) -> None:
        self._context.poison_shared(0xFF)
        self._replicas.poison(count)
        player.spaces.poison()
        if self._cold:
            self._context.sweep_cache()
        else:
            self._context.delay(QUEUE_US)

    def _sample(self) -> Samples:
        try:
            return sample(
                lambda who, calls: self._batch(who, calls), len(self._players),
                self._request.settings, self._request.seed, MAX_REPLAYS * len(self._order),
                self._monitor.sm_mhz,
            )  # fmt: skip
        except ValueError as error:
            raise LaunchError(f"the timing is impossible: {error}", {"error": str(error)}) from None

    def _batch(self, who: int, calls: int, capture: int | None = None) -> float:
        """Return the device time of ``calls`` calls, from as many whole replays as that takes."""
        context, player = self._context, self._players[who]
        count = len(self._order)
        replays = max(1, -(-calls // count))
        start, end = self._events
        total = 0.0
        with context.faults(player.what):
            for _ in range(replays):
                context.reset_persisting_lines()
                if not self._cold:
                    player.replay()  # brings the inputs into the cache; its outputs are poisoned
                self._prepare(player, max(self._order) + 1)
                context.stream.record(start)
                player.replay()
                context.stream.record(end)
                end.sync()
                total += 1000.0 * float(end - start)
            self._check_state(player)
            if who == 0:
                self._batches += 1
                due = any(
                    i not in self._captured and (i == capture or at <= self._batches)
                    for i, at in self._capture_at.items()
                )
                if due or self._replicas.own_bytes * count <= COMPARED_BYTES:
                    self._compare()
                for index, at in self._capture_at.items():
                    if index not in self._captured and (index == capture or at <= self._batches):
                        self._capture(index)
        return total * calls / (replays * count)

    def _alone_us(self, samples: Samples) -> float | None:
        """Return the time of a call with none before it, if calls were timed together.

        Raises:
            CheatedError: it is much more than among others: something was kept between them.
        """
        if len(self._order) < 2:
            return None
        context, player = self._context, self._players[0]
        start, end = self._events
        times = []
        with context.faults(player.what):
            player.build([self._order[0]])
            for _ in range(ALONE_CALLS):
                context.reset_persisting_lines()
                if not self._cold:
                    player.replay()
                self._prepare(player, max(self._order) + 1)
                context.stream.record(start)
                player.replay()
                context.stream.record(end)
                end.sync()
                times.append(1000.0 * float(end - start))
        alone, together = min(times), statistics.median(samples.samples_us[0])
        if alone > ALONE_FACTOR * together + ALONE_SLACK_US:
            raise CheatedError(
                f"a call takes {alone:.1f} us by itself and {together:.1f} us among others: "
                "something is kept from one call to the next",
                {"alone_us": alone, "together_us": together, "calls": len(self._order)},
            )
        return alone

    def _check_state(self, player: _Player) -> None:
        """Raise if the candidate wrote to its module's variables (the incumbent was judged)."""
        if player is self._players[0]:
            player.loaded.state.check("in a timed call")

    def _compare(self) -> None:
        """Compare the outputs of all calls of a replay: those on one input set must be equal.

        Raises:
            NondeterministicError: they are not: some calls did something else than others.
        """
        if not self._request.deterministic:
            return
        outputs = [s.name for s in self._request.sets[0] if s.role != "in" and s.nbytes]
        calls = [(self._replicas.replicas[n], name) for n in self._order for name in outputs]
        regions = [(r.placed[name].pointer, r.placed[name].nbytes) for r, name in calls]
        hashes = self._context.hashes(regions)
        for (replica, name), found in zip(calls, hashes, strict=True):
            if self._results.setdefault((replica.set_index, name), int(found)) != int(found):
                raise NondeterministicError(
                    f"{name} is not the same after all timed calls on the same inputs",
                    {"output": name, "input_set": replica.set_index, "timed_call": self._batches},
                )

    def _capture(self, index: int) -> None:
        """Copy the outputs of a random call of the replay that has just been timed.

        Captures take the input sets in turn, so that each set is looked at.
        """
        wanted = (self._first_set + index) % len(self._request.sets)
        calls = [n for n in self._order if self._replicas.replicas[n].set_index == wanted]
        replica = self._replicas.replicas[self._secret.choice(calls or self._order)]
        for spec in self._request.captures[index]:
            if spec.sink is not None:
                self._context.download(spec.sink, replica.placed[spec.name].pointer)
        self._captured[index] = replica.set_index

    def _end_to_end(self, player: _Player) -> float:
        """Return the median host time of a plain call, waiting included, microseconds."""
        context = self._context
        times = []
        with context.faults(player.what):
            for n in range(END_TO_END_CALLS):
                self._replicas.poison(max(self._order) + 1)
                player.spaces.poison()
                call = player.call(self._order[n % len(self._order)])
                context.sync()
                started = time.perf_counter()
                launch(context, call)
                context.sync()
                times.append(1e6 * (time.perf_counter() - started))
                self._check_state(player)
        return sorted(times)[END_TO_END_CALLS // 2]
