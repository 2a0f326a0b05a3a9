import os
import signal

import pytest

from syncguard.interrupts import Interrupts

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", SIGNALS)
def test_an_interrupt_that_a_library_swallows_is_raised_at_the_next_check(number: int) -> None:
    interrupts = Interrupts()
    with interrupts.remembered():
        interrupts.check()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()


@pytest.mark.parametrize("number", SIGNALS)
def test_the_handler_of_before_comes_back(number: int) -> None:
    before = signal.getsignal(number)
    with Interrupts().remembered():
        assert signal.getsignal(number) != before
    assert signal.getsignal(number) == before
