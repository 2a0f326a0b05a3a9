"""Does the sampler still compute the learner's policy after this weight synchronization?

Importing this package imports neither torch nor an engine: those are imported where they are used.
"""

from syncguard._version import __version__
from syncguard.conditions import CONDITIONS, CORE_CONDITIONS, Condition
from syncguard.errors import SyncguardError, Unsupported, UsageError
from syncguard.report import ExitCode, Report, SyncSummary, exit_code
from syncguard.verdict import Coverage, Reason, Status, Verdict, explain, worst

__all__ = [
    "CONDITIONS",
    "CORE_CONDITIONS",
    "Condition",
    "Coverage",
    "ExitCode",
    "Reason",
    "Report",
    "Status",
    "SyncSummary",
    "SyncguardError",
    "Unsupported",
    "UsageError",
    "Verdict",
    "__version__",
    "exit_code",
    "explain",
    "worst",
]
