"""A request that ends the process of its worker: each of its batch runs alone from then on, one in the whole fleet."""

from support.audit import leftovers
from support.scene import Scene, verdict

from shared.broker import work
from shared.broker.housekeeping import CRASHES_MAX, LOSSES_MAX
from shared.broker.work import ERRORS_MAX
from shared.errors import ErrorKind


async def crashed_batch(scene: Scene, *ids: str) -> None:
    """All of `ids` were running when their worker's process ended."""
    await scene.accept(*ids)
    tick = await scene.crash("w-1", *await scene.fetch("w-1"))
    assert tick.suspects == ids


async def test_each_of_a_crashed_batch_runs_alone_one_at_a_time_in_the_fleet(scene: Scene) -> None:
    """One worker is told to run them; nobody gets one with other work, or two at once."""
    await crashed_batch(scene, "a", "b", "c")
    assert (await scene.beat("w-2")).alone
    assert not (await scene.beat("w-3")).alone
    await scene.accept("other", "another")
    assert await scene.fetch_alone("w-3") == []
    assert [d.id for d in await scene.fetch("w-3", want=1)] == ["other"], "suspects hold nobody up"
    assert [e.request_id for e in await scene.block("w-2")] == ["another"]
    for rid in ("a", "b", "c"):
        (delivery,) = await scene.fetch_alone("w-2")
        assert (delivery.id, delivery.attempt, delivery.lane) == (rid, 2, scene.queue.suspects)
        assert (await scene.beat("w-2")).alone
        assert not (await scene.beat("w-3")).alone
        await scene.complete(delivery)
    assert await scene.fetch_alone("w-2") == []
    assert not (await scene.beat("w-2")).alone


async def test_the_culprit_ends_as_a_dead_letter_and_the_others_get_their_answers(scene: Scene) -> None:
    """Nobody is lost because of the company it was in."""
    await crashed_batch(scene, "innocent", "culprit", "bystander")
    for worker in ("w-2", "w-3"):
        assert (await scene.beat(worker)).alone
        while deliveries := await scene.fetch_alone(worker):
            if deliveries[0].id == "culprit":
                await scene.crash(worker, *deliveries)
                break
            await scene.complete(*deliveries)
    assert await scene.states("innocent", "culprit", "bystander") == ["DONE", "DEAD", "DONE"]
    (letter,) = await scene.letters()
    assert (letter.id, letter.why, letter.crashes, letter.errors) == ("culprit", "crashed", CRASHES_MAX, 0)
    answers = {rid: answer for entry in await scene.replies() for rid, answer in entry}
    assert verdict(answers["culprit"]) is ErrorKind.CRASHED
    assert answers["innocent"] == answers["bystander"] == b"=answer"
    assert await leftovers(scene.c, scene.queue) == []


async def test_only_what_was_computed_is_under_suspicion(scene: Scene) -> None:
    """What waited in the worker for the next pass is as good as it was."""
    await scene.accept("running", "waiting")
    running, _ = await scene.fetch("w-1")
    tick = await scene.crash("w-1", running)
    assert (tick.suspects, tick.requeued) == (("running",), ("waiting",))
    assert await scene.of_record("running", "cr", "lo") == ["1", ""]
    assert await scene.of_record("waiting", "cr", "lo") == ["", "1"]
    assert [d.id for d in await scene.fetch("w-2")] == ["waiting"]


async def test_a_worker_that_had_no_time_to_say_leaves_all_it_held_under_suspicion(scene: Scene) -> None:
    """It is not known which of them ran: each could be the one."""
    await scene.accept("a", "b")
    await scene.fetch("w-1")
    await scene.die("w-1")
    assert (await scene.tick()).suspects == ("a", "b")


async def test_what_a_worker_said_of_an_earlier_pass_blames_nobody(scene: Scene) -> None:
    """Its word is about requests that it still runs; about ended ones it says nothing of the others."""
    await scene.accept("earlier", "again")
    earlier, again = await scene.fetch("w-1")
    await scene.compute("w-1", earlier, again)
    await scene.complete(earlier)
    await scene.accept("held")
    await scene.fetch("w-1")
    await scene.die("w-1")
    tick = await scene.tick()
    assert (tick.suspects, tick.requeued) == (("again",), ("held",))


async def test_the_turn_to_run_suspects_passes_on_when_its_holder_dies(scene: Scene) -> None:
    """Idle or amid one, a dead runner does not keep the suspects waiting longer than its lease."""
    await crashed_batch(scene, "a", "b")
    assert (await scene.beat("idle")).alone
    await scene.die("idle")
    await scene.tick()
    assert (await scene.beat("runs")).alone
    (a,) = await scene.fetch_alone("runs")
    await scene.crash("runs", a)
    assert (await scene.beat("w-4")).alone
    assert [d.id for d in await scene.fetch_alone("w-4")] == ["b"]


async def test_the_turn_to_run_suspects_passes_on_when_its_holder_leaves(scene: Scene) -> None:
    """With nothing in its hands, at once; with a suspect in them, at the next tick."""
    await crashed_batch(scene, "a")
    assert (await scene.beat("w-2")).alone
    assert await work.leave(scene.c, scene.queue, "w-2") == 0
    assert (await scene.beat("w-3")).alone
    await scene.fetch_alone("w-3")
    assert await work.leave(scene.c, scene.queue, "w-3") == 1
    await scene.tick()
    assert (await scene.beat("w-4")).alone
    assert [d.id for d in await scene.fetch_alone("w-4")] == ["a"]


async def test_a_suspect_stays_one_until_it_ends(scene: Scene) -> None:
    """Handed back, tried again later or lost by a worker: it never meets other requests again."""
    await crashed_batch(scene, "a")
    await scene.beat("w-2")
    (a,) = await scene.fetch_alone("w-2")
    assert await scene.release("w-2", a) == 1
    (a,) = await scene.fetch_alone("w-2")
    assert await scene.retry(a) == ["RETRY"]
    assert (await scene.come_due("a")).due == ("a",)
    assert await scene.fetch("w-3") == []
    (a,) = await scene.fetch_alone("w-2")
    assert (a.lane, a.attempt) == (scene.queue.suspects, 4)
    await scene.release("w-2", a)
    await scene.c.call("DEL", scene.queue.payload("a"))
    assert await scene.fetch_alone("w-2") == [], "delivered, and not started"
    await scene.die("w-2")
    assert (await scene.tick()).requeued == ("a",)
    assert await scene.fetch("w-3") == []
    assert await scene.of_record("a", "q") == [scene.queue.suspects]


async def test_a_suspect_that_is_adopted_after_a_lost_reply_comes_alone(scene: Scene) -> None:
    """A fetch fills up around what is given, but not around a suspect."""
    await crashed_batch(scene, "a", "b")
    await scene.beat("w-2")
    await scene.fetch_alone("w-2")
    await scene.accept("other")
    own = await work.own_entries(scene.c, scene.queue, "w-2")
    assert [(d.id, d.attempt) for d in await scene.start(own, "w-2", want=5)] == [("a", 3)]


async def test_a_zombies_answer_clears_a_suspect(scene: Scene) -> None:
    """It was only slow: the first result wins, and nobody keeps the turn for nothing."""
    await scene.accept("a")
    (a,) = await scene.fetch("slow")
    await scene.crash("slow", a)
    assert (await scene.beat("w-2")).alone
    assert await scene.complete(a) == ["OK"]
    assert await scene.c.call("EXISTS", f"{scene.queue.tag}:solo") == 0
    assert not (await scene.beat("w-2")).alone
    assert await leftovers(scene.c, scene.queue) == []


async def test_crashes_and_errors_are_counted_apart(scene: Scene) -> None:
    """A crash uses up none of the tries that a failing request has, nor the reverse (row 35: asynq #1015)."""
    await scene.accept("a")
    for _ in range(ERRORS_MAX - 1):
        (a,) = await scene.fetch("w-1")
        await scene.retry(a)
        await scene.come_due("a")
    await scene.crash("w-1", *await scene.fetch("w-1"))
    await scene.beat("w-2")
    (a,) = await scene.fetch_alone("w-2")
    assert await scene.of_record("a", "er", "cr") == [str(ERRORS_MAX - 1), "1"]
    assert await scene.retry(a) == ["OK"]
    (letter,) = await scene.letters()
    assert (letter.why, letter.errors, letter.crashes) == ("errors", ERRORS_MAX, 1)


async def test_a_request_that_every_worker_loses_is_given_up(scene: Scene) -> None:
    """It never ran, so it is not the culprit; but it must not go round for ever."""
    await scene.accept("a")
    for i in range(LOSSES_MAX):
        assert await scene.state("a") == "QUEUED"
        worker = f"w-{i}"
        await scene.beat(worker)
        await scene.block(worker)
        await scene.die(worker)
        tick = await scene.tick()
    assert tick.dead == ("a",)
    (letter,) = await scene.letters()
    assert (letter.why, letter.losses, letter.crashes) == ("lost", LOSSES_MAX, 0)
    assert await leftovers(scene.c, scene.queue) == []
