"""The delivery of an explorer's groups in a simulated run: they are judged, then inserted.

It keeps the order and the limits of `rl_sync.roles.explorer.group_delivery`.
"""

from __future__ import annotations

import collections
import dataclasses

from rl_sync.messages.events import Admit, GroupsBuffered, GroupsJudged
from rl_sync.records.spans import SpanKind
from rl_sync.simulation.event_queue import Action
from rl_sync.simulation.speed.simulated_site import BufferedGroup, SimulatedSite
from rl_sync.simulation.speed.speed_plan import USEFUL, USELESS


@dataclasses.dataclass(eq=False)
class _Delivery:
    groups: list[BufferedGroup]
    then: Action | None = None
    is_judged: bool = False


class SimulatedDelivery:
    """Lets groups be judged, several deliveries at once, and inserts them one after the other.

    The groups of whole rollouts are inserted in the order of the rollouts; single groups as soon as
    they are judged.

    Args:
      site: the run.
      number: number of the explorer.
    """

    def __init__(self, site: SimulatedSite, number: int) -> None:
        self._site, self._number, self._name = site, number, site.name(number)
        self._open: collections.deque[_Delivery] = collections.deque()
        self._waiting: collections.deque[_Delivery] = collections.deque()
        self._room: tuple[float, Action] | None = None
        self._made = 0
        self._is_inserting = False

    def deliver(self, groups: list[BufferedGroup], then: Action) -> None:
        """Delivers groups; the explorer goes on at once, once there is room, or at the end."""
        plan = self._site.plan
        if not groups:
            then()
            return
        if not plan.beside:
            self._judge(_Delivery(groups, then))
            return
        parts = [[group] for group in groups] if plan.in_parts else [groups]
        self._waiting.extend(map(_Delivery, parts))
        self._room = self._site.now, then
        self._fill()

    def _fill(self) -> None:
        """Hands groups to the judges while these have room; then the explorer goes on."""
        while self._waiting and len(self._open) < self._site.plan.deliveries_ahead:
            self._judge(self._waiting.popleft())
        if not self._waiting and self._room is not None:
            (began, then), self._room = self._room, None
            self._site.record(self._name, SpanKind.WAIT, began, reason="judgements")
            then()

    def _judge(self, delivery: _Delivery) -> None:
        site, began = self._site, self._site.now
        self._open.append(delivery)
        self._made += 1

        def judged() -> None:
            site.record(self._name, SpanKind.SCORE, began)
            delivery.is_judged = True
            self._insert()

        def answered() -> None:
            site.queue.after(site.work.calls.judge, judged)

        then = answered if site.work.calls.judge else judged
        site.judge(len(delivery.groups), then, "judge", self._number, self._made)

    def _insert(self) -> None:
        """Inserts the next delivery, if it is judged and none is under way."""
        in_order = not self._site.plan.in_parts
        ready = [one for one in ([*self._open][:1] if in_order else self._open) if one.is_judged]
        if self._is_inserting or not ready:
            return
        delivery, site, began = ready[0], self._site, self._site.now
        self._is_inserting = True
        admitted = self._admitted(delivery.groups)

        def inserted() -> None:
            if admitted:
                leases = [group.lease_id for group in admitted]
                site.record(self._name, SpanKind.INSERT, began, leases=leases)
                site.buffer += admitted
                site.tell(GroupsBuffered(tuple(leases)))
            self._is_inserting = False
            self._open.remove(delivery)
            if delivery.then is not None:
                delivery.then()
            self._fill()
            self._insert()

        secs = site.draw(site.work.insert, "insert", delivery.groups[0].lease_id)
        site.queue.after(secs * len(admitted) + site.work.calls.insert, inserted)

    def _admitted(self, groups: list[BufferedGroup]) -> list[BufferedGroup]:
        """Returns the groups that the master does not have generated anew."""
        rewards = tuple(
            (group.lease_id, USELESS if self._is_useless(group) else USEFUL) for group in groups
        )
        commands = self._site.tell(GroupsJudged(rewards))
        (admit,) = (one for one in commands if isinstance(one, Admit))
        return [group for group in groups if group.lease_id in admit.lease_ids]

    def _is_useless(self, group: BufferedGroup) -> bool:
        share = self._site.work.replaced
        return share > 0 and self._site.random("useless", group.lease_id).random() < share
