//! `redis:` — the line in a Redis server.
mod script;
