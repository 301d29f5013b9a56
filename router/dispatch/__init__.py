"""One Pool on the event loop: who waits, who is woken, and the three ways in which a waiter can vanish."""

from router.dispatch.dispatcher import Dispatcher, Held
from router.dispatch.turns import Turns

__all__ = ["Dispatcher", "Held", "Turns"]
