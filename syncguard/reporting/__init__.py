"""One stream of events, many listeners: the terminal, JSON lines, files."""

from syncguard.reporting.broadcast import Broadcast
from syncguard.reporting.events import Listener
from syncguard.reporting.ndjson import Ndjson
from syncguard.reporting.sinks import ReportFile, ReportFolder
from syncguard.reporting.terminal import Terminal

__all__ = ["Broadcast", "Listener", "Ndjson", "ReportFile", "ReportFolder", "Terminal"]
