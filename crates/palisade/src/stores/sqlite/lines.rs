//! Lines in tables: one is loaded, one event is applied to it, and the difference is saved.

use rusqlite::{Connection, Row, params};

use super::columns::{
    as_i64, at, fence, nanos, read_gone, read_kind, read_mark, read_mode, span, time, write_gone,
    write_kind, write_mode,
};
use super::liveness::Folder;
use crate::fence::Fence;
use crate::line::{HolderEntry, Line, Seal, StoreTime, Told, Tombstone, WaiterEntry};
use crate::name::Name;
use crate::store::{ClaimId, Ending, Kind, Mode};

/// A line as loaded from the tables, and its new state.
pub(super) struct Loaded<'a> {
    connection: &'a Connection,
    name: &'a Name,
    now: StoreTime,
    pub(super) line: Line,
    before: Line,
    rows: Vec<Stored>,
    /// The client of this transaction's claim; `None` for the claims of others.
    ours: Option<(ClaimId, String)>,
}

/// The place of an entry in the tables.
struct Stored {
    place: i64,
    claim: ClaimId,
    fence: Option<Fence>,
    /// The client it belongs to; `None` for a detached grant.
    client: Option<String>,
}

/// A message to the client of another claim.
pub(super) struct WakeMessage {
    pub(super) client: String,
    pub(super) told: Told,
}

impl<'a> Loaded<'a> {
    pub(super) fn load(
        connection: &'a Connection,
        now: StoreTime,
        name: &'a Name,
    ) -> rusqlite::Result<Loaded<'a>> {
        let mut line = Line::default();
        let mut meta = connection
            .prepare_cached("SELECT last_fence, EXISTS (SELECT 1 FROM notes WHERE name = ?1) FROM meta WHERE id = 0")?;
        let (last_fence, has_notes): (i64, bool) =
            meta.query_row([name.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))?;
        line.last_fence = fence(last_fence);
        let mut rows = Vec::new();
        let mut select = connection.prepare_cached(
            "SELECT place, claim, kind, permit_limit, mode, permits, owner, reason, lease_ns, since_ns, expiry_ns, fence, \
             keep_until_ns, ghost, min_hold_ns, once_per_ns, mark_at_ns, mark_span_ns, mark_fence, client \
             FROM entries WHERE name = ?1 ORDER BY place",
        )?;
        let mut entries = select.query([name.as_str()])?;
        while let Some(row) = entries.next()? {
            rows.push(read_entry(row, &mut line)?);
        }
        if has_notes {
            load_notes(connection, name, &mut line)?;
        }
        Ok(Loaded {
            connection,
            name,
            now,
            before: line.clone(),
            line,
            rows,
            ours: None,
        })
    }

    /// Sets the client of this transaction's claim.
    pub(super) fn ours(mut self, claim: ClaimId, client: &str) -> Loaded<'a> {
        self.ours = Some((claim, client.to_owned()));
        self
    }

    fn client_of(&self, claim: ClaimId) -> Option<&str> {
        match &self.ours {
            Some((ours, client)) if *ours == claim => Some(client),
            _ => self
                .rows
                .iter()
                .find(|row| row.claim == claim)
                .and_then(|row| row.client.as_deref()),
        }
    }

    /// Ends the claims of dead clients. `us` is alive.
    pub(super) fn reap(&mut self, folder: &Folder, us: &str, told: &mut Vec<Told>) {
        let mut clients: Vec<&str> = self
            .rows
            .iter()
            .filter_map(|row| row.client.as_deref())
            .filter(|client| *client != us)
            .collect();
        clients.sort_unstable();
        clients.dedup();
        let dead: Vec<String> = clients
            .into_iter()
            .filter(|client| !folder.is_alive(client))
            .map(str::to_owned)
            .collect();
        if dead.is_empty() {
            return;
        }
        let is_dead = |row: &&Stored| {
            row.client
                .as_ref()
                .is_some_and(|client| dead.contains(client))
        };
        let claims: Vec<(ClaimId, Option<Fence>)> = self
            .rows
            .iter()
            .filter(is_dead)
            .map(|row| (row.claim, row.fence))
            .collect();
        // Waiters first: a name must not be handed to a dead one.
        for waiting in [true, false] {
            for (claim, fence) in claims
                .iter()
                .filter(|(_, fence)| fence.is_none() == waiting)
            {
                let _ = self
                    .line
                    .release(self.now, *claim, *fence, Ending::Release, told);
            }
        }
    }

    /// Saves the difference, and addresses the messages. A grant to a dead client goes on to the
    /// next.
    pub(super) fn save(
        mut self,
        folder: &Folder,
        us: &str,
        mut told: Vec<Told>,
    ) -> rusqlite::Result<Vec<WakeMessage>> {
        let mut messages = Vec::new();
        while !told.is_empty() {
            let mut next = Vec::new();
            for news in told {
                let Some(client) = self.client_of(news.claim()).map(str::to_owned) else {
                    continue;
                };
                if let Told::Granted { claim, fence } = news
                    && client != us
                    && !folder.is_alive(&client)
                {
                    let _ =
                        self.line
                            .release(self.now, claim, Some(fence), Ending::Release, &mut next);
                    continue;
                }
                messages.push(WakeMessage { client, told: news });
            }
            told = next;
        }
        if self.line != self.before {
            self.write_entries()?;
            self.write_notes()?;
            if self.line.last_fence != self.before.last_fence {
                let mut update = self
                    .connection
                    .prepare_cached("UPDATE meta SET last_fence = ?1 WHERE id = 0")?;
                update.execute([as_i64(self.line.last_fence)])?;
            }
        }
        Ok(messages)
    }

    fn write_entries(&mut self) -> rusqlite::Result<()> {
        let mut next_place = self.rows.last().map_or(0, |row| row.place + 1);
        let mut stored = std::mem::take(&mut self.rows);
        for holder in &self.line.holders {
            let known = stored.iter().position(|row| {
                row.claim == holder.claim && row.fence.is_none_or(|fence| fence == holder.fence)
            });
            let known = known.map(|at| stored.remove(at));
            let unchanged = known.is_some() && self.before.holders.contains(holder);
            if !unchanged {
                self.write(known, &mut next_place, Entry::Holds(holder))?;
            }
        }
        for waiter in &self.line.waiters {
            let known = stored
                .iter()
                .position(|row| row.claim == waiter.claim && row.fence.is_none())
                .map(|at| stored.remove(at));
            let unchanged = known.is_some() && self.before.waiters.contains(waiter);
            if !unchanged {
                self.write(known, &mut next_place, Entry::Waits(waiter))?;
            }
        }
        let mut delete = self
            .connection
            .prepare_cached("DELETE FROM entries WHERE name = ?1 AND place = ?2")?;
        for gone in stored {
            delete.execute(params![self.name.as_str(), gone.place])?;
        }
        Ok(())
    }

    fn write(
        &self,
        known: Option<Stored>,
        next_place: &mut i64,
        entry: Entry<'_>,
    ) -> rusqlite::Result<()> {
        let (place, client) = match known {
            Some(row) => (row.place, row.client),
            None => {
                *next_place += 1;
                (
                    *next_place - 1,
                    self.client_of(entry.claim()).map(str::to_owned),
                )
            }
        };
        let (kind, limit) = write_kind(self.line.kind.unwrap_or(Kind::Mutex));
        let (mode, permits) = write_mode(entry.mode());
        let mut replace = self.connection.prepare_cached(
            "INSERT OR REPLACE INTO entries (name, place, claim, kind, permit_limit, mode, permits, owner, reason, lease_ns, \
             since_ns, expiry_ns, fence, keep_until_ns, ghost, min_hold_ns, once_per_ns, mark_at_ns, mark_span_ns, mark_fence, \
             client) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21)",
        )?;
        let common = (
            self.name.as_str(),
            place,
            entry.claim().bits().to_be_bytes(),
        );
        match entry {
            Entry::Holds(holder) => replace.execute(params![
                common.0,
                common.1,
                common.2,
                kind,
                limit,
                mode,
                permits,
                &*holder.owner,
                holder.reason.as_deref(),
                nanos(holder.lease),
                time(holder.granted_at),
                time(holder.expiry),
                as_i64(holder.fence),
                time(holder.keep_until),
                holder.ghost,
                None::<i64>,
                None::<i64>,
                holder.mark_before.map(|mark| time(mark.at)),
                holder.mark_before.map(|mark| nanos(mark.span)),
                holder.mark_before.map(|mark| as_i64(mark.fence)),
                client,
            ])?,
            Entry::Waits(waiter) => replace.execute(params![
                common.0,
                common.1,
                common.2,
                kind,
                limit,
                mode,
                permits,
                &*waiter.owner,
                waiter.reason.as_deref(),
                nanos(waiter.lease),
                time(waiter.queued_at),
                time(waiter.expiry),
                None::<i64>,
                0,
                false,
                waiter.min_hold.map(nanos),
                waiter.once_per.map(nanos),
                None::<i64>,
                None::<i64>,
                None::<i64>,
                client,
            ])?,
        };
        Ok(())
    }

    fn write_notes(&self) -> rusqlite::Result<()> {
        let notes = |line: &Line| (line.mark, line.seal, line.tombstones.clone());
        if notes(&self.line) == notes(&self.before) {
            return Ok(());
        }
        self.connection
            .prepare_cached("DELETE FROM notes WHERE name = ?1")?
            .execute([self.name.as_str()])?;
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO notes (name, what, claim, until_ns, at_ns, fence, why) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?;
        let name = self.name.as_str();
        let no_claim = [0_u8; 16];
        if let Some(mark) = self.line.mark {
            insert.execute(params![
                name,
                "mark",
                no_claim,
                time(mark.until()),
                time(mark.at),
                as_i64(mark.fence),
                None::<&str>
            ])?;
        }
        if let Some(seal) = self.line.seal {
            let by = seal.by.bits().to_be_bytes();
            insert.execute(params![
                name,
                "seal",
                by,
                time(seal.until),
                None::<i64>,
                None::<i64>,
                None::<&str>
            ])?;
        }
        for stone in &self.line.tombstones {
            let claim = stone.claim.bits().to_be_bytes();
            insert.execute(params![
                name,
                "gone",
                claim,
                time(stone.until),
                None::<i64>,
                None::<i64>,
                write_gone(stone.why)
            ])?;
        }
        Ok(())
    }
}

enum Entry<'a> {
    Holds(&'a HolderEntry),
    Waits(&'a WaiterEntry),
}

impl Entry<'_> {
    fn claim(&self) -> ClaimId {
        match self {
            Entry::Holds(holder) => holder.claim,
            Entry::Waits(waiter) => waiter.claim,
        }
    }

    fn mode(&self) -> Mode {
        match self {
            Entry::Holds(holder) => holder.mode,
            Entry::Waits(waiter) => waiter.mode,
        }
    }
}

fn read_entry(row: &Row<'_>, line: &mut Line) -> rusqlite::Result<Stored> {
    let place = row.get(0)?;
    let claim = ClaimId::from_bits(u128::from_be_bytes(row.get(1)?));
    let kind = read_kind(row.get_ref(2)?.as_str()?, row.get(3)?);
    // A mutex is the write side of a rwlock: one rwlock claim makes the line a rwlock.
    if line.kind != Some(Kind::RwLock) {
        line.kind = Some(kind);
    }
    let mode = read_mode(row.get_ref(4)?.as_str()?, row.get(5)?);
    let owner = row.get_ref(6)?.as_str()?.into();
    let reason = row.get_ref(7)?.as_str_or_null()?.map(Into::into);
    let (lease, since, expiry) = (span(row.get(8)?), at(row.get(9)?), at(row.get(10)?));
    let fence = row.get::<_, Option<i64>>(11)?.map(fence);
    match fence {
        Some(fence) => line.holders.push(HolderEntry {
            claim,
            mode,
            owner,
            reason,
            lease,
            fence,
            granted_at: since,
            expiry,
            keep_until: at(row.get(12)?),
            ghost: row.get(13)?,
            mark_before: read_mark(row.get(16)?, row.get(17)?, row.get(18)?),
        }),
        None => line.waiters.push_back(WaiterEntry {
            claim,
            mode,
            owner,
            reason,
            lease,
            queued_at: since,
            expiry,
            min_hold: row.get::<_, Option<i64>>(14)?.map(span),
            once_per: row.get::<_, Option<i64>>(15)?.map(span),
        }),
    }
    Ok(Stored {
        place,
        claim,
        fence,
        client: row.get(19)?,
    })
}

fn load_notes(connection: &Connection, name: &Name, line: &mut Line) -> rusqlite::Result<()> {
    let mut select = connection.prepare_cached(
        "SELECT what, claim, until_ns, at_ns, fence, why FROM notes WHERE name = ?1",
    )?;
    let mut notes = select.query([name.as_str()])?;
    while let Some(row) = notes.next()? {
        let claim = ClaimId::from_bits(u128::from_be_bytes(row.get(1)?));
        let until: i64 = row.get(2)?;
        match row.get_ref(0)?.as_str()? {
            "mark" => {
                line.mark = read_mark(
                    row.get(3)?,
                    Some(until.saturating_sub(row.get(3)?)),
                    row.get(4)?,
                )
            }
            "seal" => {
                line.seal = Some(Seal {
                    until: at(until),
                    by: claim,
                })
            }
            _ => {
                let why = read_gone(row.get_ref(5)?.as_str_or_null()?.unwrap_or_default());
                line.tombstones.push(Tombstone {
                    claim,
                    why,
                    until: at(until),
                });
            }
        }
    }
    Ok(())
}
