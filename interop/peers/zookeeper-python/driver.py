"""kazoo's locks, told line by line what to do: see PROTOCOL.md."""

import logging
import os
import sys

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout, NoNodeError

RECIPES = {"kazoo-lock": "Lock", "kazoo-read": "ReadLock", "kazoo-write": "WriteLock"}


class Peer:
    def __init__(self, recipe, url):
        self.recipe = RECIPES[recipe]
        self.servers = url.removeprefix("zk://").split("?")[0]
        self.client = None
        self.session = None
        self.held = None

    def connected(self, lease_ms):
        """The lease of a lock is its session, which is made by the first request and kept while it stays the same."""
        session = int(lease_ms) / 1000 or 10
        if self.session != session:
            if self.client is not None:
                self.client.stop()
                self.client.close()
            self.client = KazooClient(hosts=self.servers, timeout=session)
            self.client.start(timeout=60)
            self.session = session
        return self.client

    def acquire(self, name, lease_ms, wait_ms):
        lock = getattr(self.connected(lease_ms), self.recipe)("/" + name, "kazoo")
        wait = int(wait_ms) / 1000
        try:
            acquired = lock.acquire(blocking=wait > 0, timeout=wait or None)
        except LockTimeout:
            return "busy"
        if not acquired:
            return "busy"
        self.held = lock
        return "acquired"

    def release(self):
        lock, self.held = self.held, None
        if lock is None:
            return "not-held"
        try:
            return "released" if lock.release() else "not-held"
        except NoNodeError:
            return "not-held"

    def extend(self, _lease_ms):
        # Its session is kept alive without being asked.
        return "not-held" if self.held is None else "extended"

    def answer(self, words):
        match words:
            case ["acquire", name, lease_ms, wait_ms]:
                return self.acquire(name, lease_ms, wait_ms)
            case ["release"]:
                return self.release()
            case ["extend", lease_ms]:
                return self.extend(lease_ms)
        raise ValueError(f"cannot understand {words}")


def main():
    logging.disable(logging.CRITICAL)
    recipe, url = sys.argv[1:]
    if recipe not in RECIPES:
        raise SystemExit(f"unknown recipe {recipe}")
    peer = Peer(recipe, url)
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            said = peer.answer(line.split())
        except Exception as error:  # the other side decides what an error means
            said = "error " + repr(error).replace("\n", " ")
        print(said, flush=True)
    # As a crash would: whatever is still held ends with its session.
    os._exit(0)


main()
