//! `redis:` — the line in a Redis server.
mod line;
mod script;
