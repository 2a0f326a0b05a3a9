import os
import signal

import pytest

from syncguard.interrupts import Interrupts


def test_an_interrupt_that_a_library_swallows_is_raised_at_the_next_check() -> None:
    interrupts = Interrupts()
    with interrupts.remembered():
        interrupts.check()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()


def test_the_handler_of_before_comes_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts().remembered():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
