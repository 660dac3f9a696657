"""A real HTTP server on the loopback for the tests of endpoints: it answers like the services, and fails as told."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

WORDS = ("pump", "filter", "pressure", "refund", "order", "paint", "frost", "brush")


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Reply:
    """`delay`: seconds before anything is sent. `drip`: seconds between bytes. `cut`: bytes that are not sent."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    drip: float = 0.0
    cut: int = 0

    def data(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


class Server:
    """Answers with `answer(request)`; whatever is in `faults` is answered first, one for each request."""

    def __init__(self, answer: Callable[[Request], Any]) -> None:
        self.answer = answer
        self.faults: deque[Reply] = deque()
        self.always: Reply | None = None
        self.requests: list[Request] = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # head and body are two packets: else the second waits 40 ms

            def log_message(self, *args: Any) -> None:
                pass

            def handle_one(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = urlsplit(self.path)
                request = Request(
                    self.command,
                    parts.path,
                    parse_qs(parts.query),
                    dict(self.headers),
                    json.loads(raw) if raw else None,
                )
                with server.lock:
                    server.requests.append(request)
                    server.at_once += 1
                    server.most_at_once = max(server.most_at_once, server.at_once)
                    fault = server.faults.popleft() if server.faults else server.always
                try:
                    reply = fault if fault is not None else server.answer(request)
                    self.send(reply if isinstance(reply, Reply) else Reply(body=reply))
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True
                finally:
                    with server.lock:
                        server.at_once -= 1

            def do_GET(self) -> None:
                self.handle_one()

            def do_POST(self) -> None:
                self.handle_one()

            def send(self, reply: Reply) -> None:
                time.sleep(reply.delay)
                data = reply.data()
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                sent = data[: len(data) - reply.cut]
                if reply.drip:
                    for i in range(len(sent)):
                        self.wfile.write(sent[i : i + 1])
                        self.wfile.flush()
                        time.sleep(reply.drip)
                else:
                    self.wfile.write(sent)
                if reply.cut:
                    self.close_connection = True

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that hung up is what some tests want."""

        self.httpd = Quiet(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.httpd.server_address[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def bodies(self) -> list[Any]:
        return [request.body for request in self.requests]


@contextmanager
def serving(answer: Callable[[Request], Any]) -> Iterator[Server]:
    server = Server(answer)
    server.thread.start()
    try:
        yield server
    finally:
        server.httpd.shutdown()
        server.httpd.server_close()
        server.thread.join()


# What the services answer


def counts(text: str) -> list[int]:
    """How often each of `WORDS` occurs: a vector that a person can check."""
    found = re.findall(r"[a-z]+", text.lower())
    return [sum(w.startswith(word) for w in found) for word in WORDS]


def overlap(question: str, text: str) -> float:
    return float(sum(min(a, b) for a, b in zip(counts(question), counts(text), strict=True)))


def embeddings(request: Request) -> Any:
    texts = request.body["input"]
    data = [
        {"object": "embedding", "index": i, "embedding": [float(c) for c in counts(t)]} for i, t in enumerate(texts)
    ]
    tokens = sum(len(t.split()) for t in texts)
    # Last one first: only `index` says whose it is.
    return {
        "object": "list",
        "model": "m",
        "data": data[::-1],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def rerank_cohere(request: Request) -> Any:
    body = request.body
    scored = [(overlap(body["query"], text), i) for i, text in enumerate(body["documents"])]
    results = [{"index": i, "relevance_score": score} for score, i in sorted(scored, key=lambda x: (-x[0], x[1]))]
    return {"id": "x", "results": results, "meta": {"billed_units": {"search_units": 1}}}


def rerank_tei(request: Request) -> Any:
    body = request.body
    if len(body["texts"]) > 2:
        error = f"batch size {len(body['texts'])} > maximum allowed batch size 2"
        return Reply(422, {"error": error, "error_type": "Validation"})
    return [{"index": i, "score": overlap(body["query"], t)} for i, t in enumerate(body["texts"])]


def chat(request: Request) -> Any:
    """Answers with the passages' numbers when a word of the question is in them."""
    passages, _, question = request.body["messages"][-1]["content"].rpartition("Question: ")
    good = overlap(question, passages) > 0
    said = {"answerable": good, "answer": "It is in [1]." if good else "The passages do not say."}
    return chat_reply(json.dumps(said))


def chat_reply(
    content: Any, finish: str = "stop", usage: Any = ({"prompt_tokens": 40, "completion_tokens": 7},)
) -> Any:
    message = {"role": "assistant", "content": content}
    reply = {
        "id": "x",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
    }
    return {**reply, "usage": usage[0]} if usage else reply


def every(request: Request) -> Any:
    """All services behind one address."""
    known = {"/embeddings": embeddings, "/rerank": rerank_cohere, "/chat/completions": chat}
    for path, answer in known.items():
        if request.path.endswith(path):
            return answer(request)
    return Reply(404, {"error": "no such path"})
