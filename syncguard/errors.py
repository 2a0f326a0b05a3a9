"""What can go wrong outside a check: each error says what, where and what to do."""

__all__ = ["EngineLost", "SyncguardError", "Unsupported", "UsageError"]


class SyncguardError(Exception):
    """Base of all errors that syncguard raises on purpose."""


class UsageError(SyncguardError):
    """The request cannot be carried out as given: a wrong name, path, model or option."""


class Unsupported(SyncguardError):
    """The engine or the learner cannot make this observation; the text says why."""


class EngineLost(SyncguardError):
    """The engine's process has died, or was ended because it hung; nothing serves any more."""
