use std::time::Duration;

use palisade_testkit::zookeeper::{Make, Raw};

use super::library::Recipe;
use crate::participant::{Acquired, Extended, Fault, Participant, Released};

/// As long as a contest's visits are apart at the most.
const SESSION: Duration = Duration::from_secs(10);

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Enters the line correctly, and does not wait for the nodes before its own.
    IgnoresTheLine,
    /// Deletes the nodes before its own, and enters.
    DeletesTheLine,
}

/// A participant in a recipe of Curator, with a [`Mistake`].
#[derive(Debug)]
pub struct Saboteur {
    raw: Raw,
    mistake: Mistake,
    recipe: Recipe,
    held: Option<String>,
}

impl Saboteur {
    /// Makes this mistake at `zk://HOST:PORT`.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn connect(url: &str, mistake: Mistake, recipe: Recipe) -> Result<Self, Fault> {
        let address = url
            .strip_prefix("zk://")
            .and_then(|address| address.parse().ok());
        let address = address.ok_or_else(|| Fault::new(format!("{url} is not zk://HOST:PORT")))?;
        Ok(Self {
            raw: Raw::open(address, SESSION).map_err(Fault::of)?,
            mistake,
            recipe,
            held: None,
        })
    }

    /// The nodes above its own, and how its own begins.
    fn place(&self, name: &str) -> (Vec<String>, &'static str) {
        let dir = format!("/{name}");
        match self.recipe {
            Recipe::Mutex => (vec![dir], "lock-"),
            Recipe::Read => (vec![dir], "__READ__"),
            Recipe::Write => (vec![dir], "__WRIT__"),
            Recipe::Semaphore | Recipe::SemaphoreMutex => {
                let leases = format!("{dir}/leases");
                (vec![dir, leases], "lease-")
            }
            // The first of the two is enough for a mistake.
            Recipe::Multi => (vec![format!("{dir}-1")], "lock-"),
        }
    }

    fn delete_the_line(&mut self, dir: &str) -> Result<(), Fault> {
        for child in self.raw.children(dir).map_err(Fault::of)? {
            self.raw
                .delete(&format!("{dir}/{child}"))
                .map_err(Fault::of)?;
        }
        Ok(())
    }
}

impl Participant for Saboteur {
    fn acquire(&mut self, name: &str, _: Option<Duration>, _: Duration) -> Result<Acquired, Fault> {
        let (dirs, mark) = self.place(name);
        for dir in &dirs {
            self.raw
                .create(dir, b"", Make::Persistent)
                .map_err(Fault::of)?;
        }
        let dir = dirs
            .last()
            .ok_or_else(|| Fault::new("there is a node above"))?;
        if self.mistake == Mistake::DeletesTheLine {
            self.delete_the_line(dir)?;
        }
        let node = format!("{dir}/_c_{:032x}-{mark}", fastrand::u128(..));
        self.held = self
            .raw
            .create(&node, b"saboteur", Make::EphemeralSequential)
            .map_err(Fault::of)?;
        Ok(Acquired::Yes)
    }

    fn release(&mut self) -> Result<Released, Fault> {
        if let Some(node) = self.held.take() {
            self.raw.delete(&node).map_err(Fault::of)?;
        }
        // It ignores this answer, too.
        Ok(Released::Unsaid)
    }

    fn extend(&mut self, _: Duration) -> Result<Extended, Fault> {
        Ok(Extended::Yes)
    }
}
