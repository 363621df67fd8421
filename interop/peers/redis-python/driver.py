"""redis-py's lock, told line by line what to do: see PROTOCOL.md."""

import sys

import redis
from redis.exceptions import LockError

# How often a waiting lock asks again. Far more often than by default, so that all have the same chances in a contest.
RETRY_DELAY = 0.01


class Peer:
    def __init__(self, url):
        self.client = redis.Redis.from_url(url)
        self.held = None

    def acquire(self, name, lease_ms, wait_ms):
        lease = int(lease_ms) / 1000 or None
        lock = self.client.lock(name, timeout=lease, sleep=RETRY_DELAY)
        wait = int(wait_ms) / 1000
        if not lock.acquire(blocking=wait > 0, blocking_timeout=wait or None):
            return "busy"
        self.held = lock
        return "acquired"

    def release(self):
        lock, self.held = self.held, None
        if lock is None:
            return "not-held"
        try:
            lock.release()
        except LockError:
            return "not-held"
        return "released"

    def extend(self, lease_ms):
        if self.held is None:
            return "not-held"
        try:
            self.held.extend(int(lease_ms) / 1000, replace_ttl=True)
        except LockError:
            return "not-held"
        return "extended"

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
    library, url = sys.argv[1:]
    if library != "redis-py":
        raise SystemExit(f"unknown library {library}")
    peer = Peer(url)
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            said = peer.answer(line.split())
        except Exception as error:  # the other side decides what an error means
            said = "error " + str(error).replace("\n", " ")
        print(said, flush=True)


main()
