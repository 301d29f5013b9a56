"""Several processes give the same results in the same order, and none of them is left behind."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from multiprocessing import active_children

import pytest

from router.studies.processes import LostProcess, in_processes


def test_results_come_in_the_order_of_the_tasks() -> None:
    assert list(in_processes([-3, 5, -1, 0], 2, abs)) == [3, 5, 1, 0]
    assert not active_children()


def test_a_process_that_is_ended_from_outside_is_told_of_in_a_sentence() -> None:
    with pytest.raises(LostProcess, match="ended from outside"):
        list(in_processes([1, 1], 2, os._exit))
    assert not active_children()


def test_an_error_of_a_run_is_the_error_of_all() -> None:
    with pytest.raises(ZeroDivisionError):
        list(in_processes([0, 0], 2, partial(divmod, 1)))


def test_whoever_stops_early_waits_for_nobody() -> None:
    runs = in_processes([0.0, 1e6], 2, time.sleep)
    assert next(runs) is None
    runs.close()
    assert not active_children()


def test_an_interrupt_comes_through_and_ends_all_processes() -> None:
    with pytest.raises(KeyboardInterrupt):
        list(in_processes([signal.SIGINT, 0], 2, partial(os.kill, os.getpid())))
    assert not active_children()


def test_processes_do_not_hear_an_interrupt_and_this_one_does() -> None:
    blocked = list(in_processes([(), ()], 2, partial(signal.pthread_sigmask, signal.SIG_BLOCK)))
    assert blocked == [{signal.SIGINT}] * 2
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
