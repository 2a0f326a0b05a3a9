"""An HTTP server that does what it is told; run as ``standin_server.py PORT [broken|mute]``."""

import json
import os
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        if self.path == "/child":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
            self.answer(200, json.dumps({"pid": child.pid}))
            return
        self.answer(200, json.dumps({"version": "1"}))

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/answer":
            self.answer(asked["status"], asked["text"])
            return
        if self.path == "/end":
            sys.stderr.write("going down\n")
            sys.stderr.flush()
            os._exit(asked["code"])
        time.sleep(asked.get("seconds", 0))
        self.answer(200, json.dumps(asked))

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


if __name__ == "__main__":
    if "broken" in sys.argv:
        raise ValueError("no such model")
    if "mute" in sys.argv:
        time.sleep(100)
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
