use palisade_testkit::resp::Connection;

use crate::check::Mark;
use crate::participant::Fault;
use crate::redis::connection::{call, open};

/// Its own keys, out of the way of locks.
const MARKS: &str = "witness:marks";
const COUNTER: &str = "witness:counter";

/// A counter that only a lock protects, and a list of visits. Both are in a Redis, which decides
/// the order, also when the locks are in another store.
#[derive(Clone, Debug)]
pub struct Witness {
    url: String,
}

impl Witness {
    /// In the Redis at `redis://HOST:PORT`, which is asked to forget earlier contests.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub fn new(url: &str) -> Result<Self, Fault> {
        call(&mut open(url)?, &["DEL", MARKS, COUNTER])?;
        Ok(Self {
            url: url.to_owned(),
        })
    }

    /// One visitor's own line to it.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub fn visitor(&self) -> Result<Visitor, Fault> {
        Ok(Visitor {
            connection: open(&self.url)?,
        })
    }

    /// What it saw, in order, and how far the counter came.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub fn seen(&self) -> Result<(Vec<Mark>, u64), Fault> {
        let mut connection = open(&self.url)?;
        let list = call(&mut connection, &["LRANGE", MARKS, "0", "-1"])?;
        let marks = list
            .list()
            .iter()
            .map(|mark| parse(&mark.text()))
            .collect::<Result<_, _>>()?;
        Ok((marks, counter(&mut connection)?))
    }
}

/// One visitor's line to the [`Witness`].
#[derive(Debug)]
pub struct Visitor {
    connection: Connection,
}

impl Visitor {
    /// Begins a visit: says so, and reads the counter.
    ///
    /// # Errors
    ///
    /// When the witness does not answer.
    pub fn enter(&mut self, id: String) -> Result<Visit<'_>, Fault> {
        call(
            &mut self.connection,
            &["RPUSH", MARKS, &format!("enter {id}")],
        )?;
        let found = counter(&mut self.connection)?;
        Ok(Visit {
            visitor: self,
            id,
            found,
        })
    }
}

/// What happens under the lock.
#[derive(Debug)]
pub struct Visit<'a> {
    visitor: &'a mut Visitor,
    id: String,
    found: u64,
}

impl Visit<'_> {
    /// Ends it: writes one more than it read, without a comparison, and records the end.
    ///
    /// # Errors
    ///
    /// When the witness does not answer.
    pub fn leave(self) -> Result<(), Fault> {
        call(
            &mut self.visitor.connection,
            &["SET", COUNTER, &(self.found + 1).to_string()],
        )?;
        self.leave_as_found()
    }

    /// Ends it without a change.
    ///
    /// # Errors
    ///
    /// When the witness does not answer.
    pub fn leave_as_found(self) -> Result<(), Fault> {
        call(
            &mut self.visitor.connection,
            &["RPUSH", MARKS, &format!("leave {}", self.id)],
        )
        .map(drop)
    }
}

fn counter(connection: &mut Connection) -> Result<u64, Fault> {
    let found = call(connection, &["GET", COUNTER])?.text();
    if found.is_empty() {
        Ok(0)
    } else {
        found.parse().map_err(Fault::of)
    }
}

fn parse(mark: &str) -> Result<Mark, Fault> {
    match mark.split_once(' ') {
        Some(("enter", visit)) => Ok(Mark::Enter(visit.to_owned())),
        Some(("leave", visit)) => Ok(Mark::Leave(visit.to_owned())),
        _ => Err(Fault::new(format!("{mark:?} is no mark"))),
    }
}
