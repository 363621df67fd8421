"""A plain table of locks, or the session locks of the database, told line by line what to do: see PROTOCOL.md.

`plain` takes a lock by INSERT and gives it back by DELETE; `deletes-any` and `ends-any` also end the locks of others, in this table
and in ShedLock's. `advisory` takes the session lock of the name by `pg_advisory_lock` or `GET_LOCK`; `barges` enters without any."""

import sys
import time
import uuid
from urllib.parse import urlsplit

# How often a waiting lock asks again.
RETRY_DELAY = 0.01

TAKE = "INSERT INTO distributed_lock (lock_name, owner_id, expire_time) VALUES (%s, %s, {now} + {span})"
CLEAN = "DELETE FROM distributed_lock WHERE expire_time < {now}"
GIVE = "DELETE FROM distributed_lock WHERE lock_name = %s AND owner_id = %s"
EXTEND = "UPDATE distributed_lock SET expire_time = {now} + {span} WHERE lock_name = %s AND owner_id = %s AND expire_time > {now}"
DELETE_ANY = "DELETE FROM distributed_lock WHERE lock_name = %s"
END_ANY = "UPDATE shedlock SET lock_until = locked_at WHERE name = %s"


class Postgres:
    KEY = "('x' || left(encode(sha256(convert_to(%s, 'UTF8')), 'hex'), 16))::bit(64)::bigint"
    UNLOCK = f"SELECT pg_advisory_unlock({KEY})"

    def lock(self, ask, name, wait_ms):
        if not wait_ms:
            return ask(f"SELECT pg_try_advisory_lock({self.KEY})", name)
        import psycopg

        self.connection.execute(f"SET lock_timeout = {wait_ms}")
        try:
            ask(f"SELECT pg_advisory_lock({self.KEY})", name)
        except psycopg.errors.LockNotAvailable:
            # It may have been granted at that moment.
            ask("SELECT pg_advisory_unlock_all()")
            return False
        return True

    words = {"now": "clock_timestamp()", "span": "%s * interval '1 millisecond'"}

    def __init__(self, url):
        import psycopg

        self.taken = psycopg.errors.UniqueViolation
        self.again = ()
        self.connection = psycopg.connect(url, autocommit=True)

    def span(self, milliseconds):
        return milliseconds


class MySql:
    UNLOCK = "SELECT RELEASE_LOCK(%s)"

    def lock(self, ask, name, wait_ms):
        return ask("SELECT GET_LOCK(%s, %s)", name, wait_ms / 1000) == 1

    words = {"now": "SYSDATE()", "span": "INTERVAL %s MICROSECOND"}

    def __init__(self, url):
        import mysql.connector

        at = urlsplit(url)
        self.taken = mysql.connector.errors.IntegrityError
        # A deadlock: nothing was done.
        self.again = mysql.connector.errors.InternalError
        self.connection = mysql.connector.connect(
            host=at.hostname, port=at.port, user=at.username, password=at.password, database=at.path[1:], autocommit=True,
            # An expiry of whole seconds that stays the same is extended all the same.
            client_flags=[mysql.connector.ClientFlag.FOUND_ROWS],
        )

    def span(self, milliseconds):
        return milliseconds * 1000


class Session:
    """The session locks of the database: they end with this connection."""

    def __init__(self, database, sabotage):
        self.database = database
        self.sabotage = sabotage
        self.held = None

    def ask(self, statement, *values):
        with self.database.connection.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchone()[0]

    def acquire(self, name, lease_ms, wait_ms):
        if not self.sabotage and not self.database.lock(self.ask, name, wait_ms):
            return "busy"
        self.held = name
        return "acquired"

    def release(self):
        held, self.held = self.held, None
        if self.sabotage:
            return "unsaid"
        return "released" if held and self.ask(self.database.UNLOCK, held) else "not-held"

    def extend(self, lease_ms):
        # The server keeps it for as long as this connection lives.
        return "extended" if self.held else "not-held"

    def answer(self, words):
        match words:
            case ["acquire", name, lease_ms, wait_ms]:
                return self.acquire(name, int(lease_ms), int(wait_ms))
            case ["release"]:
                return self.release()
            case ["extend", lease_ms]:
                return self.extend(int(lease_ms))
        raise ValueError(f"cannot understand {words}")


class Peer:
    def __init__(self, database, sabotage):
        self.database = database
        self.sabotage = sabotage
        self.held = None

    def run(self, statement, *values):
        """How many rows it changed."""
        text = statement.format(**self.database.words)
        while True:
            try:
                with self.database.connection.cursor() as cursor:
                    cursor.execute(text, values)
                    return cursor.rowcount
            except self.database.again:
                continue

    def take(self, name, owner, lease_ms):
        self.run(CLEAN)
        try:
            self.run(TAKE, name, owner, self.database.span(lease_ms))
        except self.database.taken:
            return False
        return True

    def acquire(self, name, lease_ms, wait_ms):
        if self.sabotage:
            # It asks nobody, and takes away what another has.
            self.run(self.sabotage, name)
            return "acquired"
        owner, end = str(uuid.uuid4()), time.monotonic() + wait_ms / 1000
        while not self.take(name, owner, lease_ms):
            if time.monotonic() >= end:
                return "busy"
            time.sleep(RETRY_DELAY)
        self.held = name, owner
        return "acquired"

    def release(self):
        held, self.held = self.held, None
        if self.sabotage:
            return "unsaid"
        return "released" if held and self.run(GIVE, *held) else "not-held"

    def extend(self, lease_ms):
        if self.sabotage:
            return "extended"
        extended = self.held and self.run(EXTEND, self.database.span(lease_ms), *self.held)
        return "extended" if extended else "not-held"

    def answer(self, words):
        match words:
            case ["acquire", name, lease_ms, wait_ms]:
                return self.acquire(name, int(lease_ms), int(wait_ms))
            case ["release"]:
                return self.release()
            case ["extend", lease_ms]:
                return self.extend(int(lease_ms))
        raise ValueError(f"cannot understand {words}")


def main():
    library, url = sys.argv[1:]
    database = Postgres(url) if url.startswith("postgres:") else MySql(url)
    if library in ("advisory", "barges"):
        peer = Session(database, library == "barges")
    else:
        peer = Peer(database, {"plain": None, "deletes-any": DELETE_ANY, "ends-any": END_ANY}[library])
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            said = peer.answer(line.split())
        except Exception as error:  # the other side decides what an error means
            said = "error " + str(error).replace("\n", " ")
        print(said, flush=True)


main()
