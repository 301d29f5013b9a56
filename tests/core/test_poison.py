"""Laws of the poison guard."""

from router.core.poison import PoisonGuard

BODY, OTHER = b'{"model":"m","prompt":"kill"}', b'{"model":"m","prompt":"fine"}'


def test_a_body_is_refused_once_two_workers_were_lost_while_serving_it() -> None:
    guard = PoisonGuard(hold_s=60.0)
    guard.broke(BODY, "a", 0, now=1.0)
    guard.lost("a", now=2.0)
    assert not guard.refuses(BODY, now=2.0)
    guard.broke(BODY, "b", 3, now=3.0)
    guard.lost("b", now=4.0)
    assert guard.refuses(BODY, now=4.0)
    assert guard.refuses(BODY, now=63.9)
    assert not guard.refuses(BODY, now=64.0)


def test_other_bodies_are_not_refused() -> None:
    guard = PoisonGuard()
    for worker in ("a", "b"):
        guard.broke(BODY, worker, 0, now=1.0)
        guard.lost(worker, now=1.0)
    assert not guard.refuses(OTHER, now=1.0)


def test_a_broken_answer_alone_is_no_proof() -> None:
    guard = PoisonGuard()
    for worker in ("a", "b", "c"):
        guard.broke(BODY, worker, 0, now=1.0)
    assert not guard.refuses(BODY, now=1.0)


def test_the_same_worker_twice_in_one_incarnation_counts_once() -> None:
    guard = PoisonGuard()
    guard.broke(BODY, "a", 0, now=1.0)
    guard.lost("a", now=1.5)
    guard.broke(BODY, "a", 0, now=2.0)
    guard.lost("a", now=2.5)
    assert not guard.refuses(BODY, now=3.0)


def test_one_worker_in_two_incarnations_counts_twice() -> None:
    guard = PoisonGuard()
    for incarnation in (0, 1):
        guard.broke(BODY, "a", incarnation, now=1.0 + incarnation)
        guard.lost("a", now=1.5 + incarnation)
    assert guard.refuses(BODY, now=3.0)


def test_a_loss_long_after_the_broken_answer_is_not_blamed_on_it() -> None:
    guard = PoisonGuard(hold_s=60.0)
    for worker in ("a", "b"):
        guard.broke(BODY, worker, 0, now=1.0)
        guard.lost(worker, now=62.0)
    assert not guard.refuses(BODY, now=62.0)


def test_what_is_remembered_is_bounded() -> None:
    guard = PoisonGuard()
    for number in range(5_000):
        guard.broke(b"%d" % number, "a", 0, now=float(number))
    assert repr(guard) == "<PoisonGuard [1024 suspected bodies]>"
