"""One Pool on the event loop: who waits, who is woken, and the three ways in which a waiter can vanish."""

from router.dispatch.dispatcher import Dispatcher, Held

__all__ = ["Dispatcher", "Held"]
