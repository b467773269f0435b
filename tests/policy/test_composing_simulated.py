"""What batching by cost comes to, in virtual time, beside batches in order of arrival.

A CPU as measured: texts of real lengths one by one 45 a second; packed, or sorted, at best about 70. Texts are
log-normal (median 21 tokens, mean 41, cut off at 256). All seeds are fixed, so the figures are always the same.
"""

import random

import pytest
from policy.virtual_worker import MS, NEVER, ArrivalOrder, CostAware, Run, closed_loop, open_loop, serve

from shared.policy import composing
from shared.policy.batching import BatchLimits, Dispatch, Idle, Waiting, WaitUntil
from shared.policy.service_time import Form, Law, ServiceTime, shape_of

PACKED = Law(Form.PACKED, 7 * MS, 0.27 * MS, 300, 0.3 * MS)
PADDED = Law(Form.PADDED, 7 * MS, 0.27 * MS, 300, 0.3 * MS)
ONE_BY_ONE = BatchLimits(1)
LIMITS = BatchLimits(64, cost_max=512, patience_ns=100 * MS)
REQUESTS = 2000
seeds = pytest.mark.parametrize("seed", [3, 13])
connections_of_any_number = pytest.mark.parametrize("connections", [8, 64])


def warmed_up(law: Law) -> ServiceTime:
    """As after some passes of a warm-up: what was learned before, from noisy passes."""
    learned, chance = ServiceTime(law.form), random.Random(1)
    for _ in range(40):
        batch = [Waiting("w", 1, chance.choice([8, 20, 60, 250]), None, 0, NEVER)] * chance.randint(1, 8)
        learned.observe(shape_of(batch), round(law.predict_ns(shape_of(batch)) * chance.uniform(0.9, 1.1)))
    return learned


def cost_aware(law: Law, limits: BatchLimits = LIMITS) -> CostAware:
    return CostAware(limits, learns=warmed_up(law))


# -- a model that packs ----------------------------------------------------------------------------------------------


@seeds
@connections_of_any_number
def test_packed_and_saturated_it_is_as_good_as_the_order_of_arrival(connections: int, seed: int) -> None:
    """Throughput and slowest alike (68 and 73 a second): there is nothing to gain but also nothing lost."""
    cost, arrival = (
        closed_loop(policy, PACKED, connections=connections, requests=REQUESTS, seed=seed)
        for policy in (cost_aware(PACKED), ArrivalOrder(LIMITS))
    )
    assert cost.per_s() >= 0.98 * arrival.per_s()
    assert cost.mean_ms() <= 1.02 * arrival.mean_ms()
    assert cost.quantile_ms(0.99) <= 1.15 * arrival.quantile_ms(0.99)


@seeds
@pytest.mark.parametrize("per_s", [20, 45, 55])
def test_packed_and_less_than_saturated_it_is_faster(per_s: float, seed: int) -> None:
    """Nobody is made to wait for company that does not pay: the mean is lower, and the slowest are not slower."""
    requests = open_loop(REQUESTS, per_s=per_s, seed=seed)
    cost, arrival = (serve(policy, requests, PACKED) for policy in (cost_aware(PACKED), ArrivalOrder(LIMITS)))
    assert cost.mean_ms() <= 0.98 * arrival.mean_ms()
    assert cost.quantile_ms(0.5) <= 1.03 * arrival.quantile_ms(0.5)
    assert cost.quantile_ms(0.99) <= 1.05 * arrival.quantile_ms(0.99)


@seeds
def test_at_low_load_it_is_as_fast_as_a_server_that_does_not_batch(seed: int) -> None:
    """At 20 a second, half and slowest; at 45 that server drowns and this one does not."""
    requests = open_loop(REQUESTS, per_s=20, seed=seed)
    cost, single = (serve(policy, requests, PACKED) for policy in (cost_aware(PACKED), ArrivalOrder(ONE_BY_ONE)))
    assert cost.quantile_ms(0.5) <= 1.02 * single.quantile_ms(0.5)
    assert cost.quantile_ms(0.99) <= 1.05 * single.quantile_ms(0.99)
    requests = open_loop(REQUESTS, per_s=45, seed=seed)
    cost, single = (serve(policy, requests, PACKED) for policy in (cost_aware(PACKED), ArrivalOrder(ONE_BY_ONE)))
    assert cost.mean_ms() <= 0.6 * single.mean_ms()


# -- a model that pads -----------------------------------------------------------------------------------------------


@seeds
@connections_of_any_number
def test_padded_it_wastes_little_and_does_a_multiple_of_the_order_of_arrival(connections: int, seed: int) -> None:
    """Less than 15 % padding (3 % usually), where the order of arrival computes two to four times what it needs."""
    cost, arrival, single = (
        closed_loop(policy, PADDED, connections=connections, requests=REQUESTS, seed=seed)
        for policy in (cost_aware(PADDED), ArrivalOrder(LIMITS), ArrivalOrder(ONE_BY_ONE))
    )
    assert cost.padding() < 0.15
    assert arrival.padding() > 1
    assert cost.per_s() >= 1.8 * arrival.per_s()
    assert cost.per_s() >= 1.1 * single.per_s()
    assert cost.quantile_ms(0.99) <= 0.7 * arrival.quantile_ms(0.99)
    assert cost.mean_ms() <= 0.95 * single.mean_ms()


@seeds
@pytest.mark.parametrize("per_s", [20, 45, 55])
def test_padded_it_stands_a_load_at_which_the_order_of_arrival_drowns(per_s: float, seed: int) -> None:
    """Little waste at any load; at 20 a second it is as fast as a server that does not batch."""
    requests = open_loop(REQUESTS, per_s=per_s, seed=seed)
    cost = serve(cost_aware(PADDED), requests, PADDED)
    assert cost.padding() < 0.15
    assert cost.per_s() >= 0.97 * per_s * (REQUESTS / per_s * 1e9) / requests[-1].since_ns
    if per_s == 20:
        single = serve(ArrivalOrder(ONE_BY_ONE), requests, PADDED)
        assert cost.quantile_ms(0.5) <= 1.02 * single.quantile_ms(0.5)
        assert cost.quantile_ms(0.99) <= 1.05 * single.quantile_ms(0.99)


def test_it_learns_while_it_serves() -> None:
    """Without a warm-up the first batches are in order of arrival, then it takes over; noise and outliers are usual."""
    chance = random.Random(1)

    def noise() -> float:
        return chance.uniform(0.9, 1.1) * (chance.uniform(2, 5) if chance.random() < 0.03 else 1)

    learns = ServiceTime(Form.PADDED)
    run = serve(CostAware(LIMITS, learns), open_loop(REQUESTS, per_s=45, seed=3), PADDED, noise=noise)
    assert learns.trusted(64)
    known = [p for p in run.passes[len(run.passes) // 2 :] if p.predicted_ns]
    errors = sorted(abs((p.ended_ns - p.began_ns) / p.predicted_ns - 1) for p in known)
    assert len(known) > 0.4 * len(run.passes)
    assert errors[len(errors) // 2] < 0.1
    assert Run(passes=known).padding() < 0.15


# -- when ------------------------------------------------------------------------------------------------------------


class NeverWaits(CostAware):
    """Not told the rate."""

    def decide(self, waiting: list[Waiting], now_ns: int) -> Dispatch | WaitUntil | Idle:
        return composing.decide(waiting, device_free=True, now_ns=now_ns, limits=self.limits, law=self.law)


@pytest.mark.parametrize("per_s", [100, 300, 700, 2000])
def test_waiting_for_company_saves_passes_and_costs_nobody_time(per_s: float) -> None:
    """A GPU that takes 5 ms a pass and next to nothing a request."""
    gpu, limits = Law(Form.PACKED, 5 * MS, 0, 0, 0.05 * MS), BatchLimits(256, patience_ns=50 * MS)
    requests = open_loop(6000, per_s=per_s, seed=5)
    waits, never = (serve(policy(limits, law=gpu), requests, gpu) for policy in (CostAware, NeverWaits))
    assert waits.mean_ms() <= 1.01 * never.mean_ms()
    assert waits.quantile_ms(0.99) <= 1.01 * never.quantile_ms(0.99)
    assert len(waits.passes) <= len(never.passes) * (0.96 if per_s == 700 else 1)
