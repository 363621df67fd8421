use std::fmt;
use std::time::Duration;

/// Somebody who wants a lock, and holds one at most.
pub trait Participant: Send {
    /// Asks for `name`, and waits for at most so long; zero is one attempt. Without a lease the lock has no end.
    ///
    /// # Errors
    ///
    /// When there is no answer, or when the library cannot do what is asked.
    fn acquire(
        &mut self,
        name: &str,
        lease: Option<Duration>,
        wait: Duration,
    ) -> Result<Acquired, Fault>;

    /// Gives back what it acquired last, whether or not it still holds it.
    ///
    /// # Errors
    ///
    /// When there is no answer.
    fn release(&mut self) -> Result<Released, Fault>;

    /// Makes the lease of what it acquired last begin anew.
    ///
    /// # Errors
    ///
    /// When there is no answer.
    fn extend(&mut self, lease: Duration) -> Result<Extended, Fault>;

    /// In an election, where to acquire is to campaign and to release to resign: changes the value that others see.
    ///
    /// # Errors
    ///
    /// When there is no answer, or no election.
    fn proclaim(&mut self, value: &str) -> Result<Proclaimed, Fault> {
        Err(Fault::new(format!(
            "no election here: cannot proclaim {value}"
        )))
    }

    /// Who leads now.
    ///
    /// # Errors
    ///
    /// When there is no answer, or no election.
    fn leader(&mut self, name: &str) -> Result<Led, Fault> {
        Err(Fault::new(format!(
            "no election here: cannot say who leads {name}"
        )))
    }

    /// Who leads next, or what its next value is, by what the library pushes; nobody when nothing changes for so long.
    ///
    /// # Errors
    ///
    /// When there is no answer, or no election.
    fn observe(&mut self, name: &str, wait: Duration) -> Result<Led, Fault> {
        Err(Fault::new(format!(
            "no election here: cannot observe {name} for {wait:?}"
        )))
    }
}

/// The answer to [`Participant::acquire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// It holds the lock.
    Yes,
    /// Somebody else held it all the time.
    Busy,
}

/// The answer to [`Participant::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// It held the lock until now.
    Yes,
    /// It did not hold it any more.
    NotHeld,
    /// The library does not tell.
    Unsaid,
}

/// The answer to [`Participant::extend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extended {
    /// The lease begins anew.
    Yes,
    /// It did not hold the lock any more.
    NotHeld,
}

/// The answer to [`Participant::proclaim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proclaimed {
    /// Others see the value from now on.
    Yes,
    /// It did not lead any more.
    NotHeld,
}

/// The answer to [`Participant::leader`] and [`Participant::observe`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Led {
    /// Whoever proclaims this.
    By(String),
    /// Nobody.
    Nobody,
}

/// Why there is no answer.
#[derive(Clone, PartialEq, Eq)]
pub struct Fault(String);

impl Fault {
    /// A fault in these words.
    pub fn new(words: impl Into<String>) -> Self {
        Self(words.into())
    }

    /// What something else that failed says about it.
    pub fn of(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// As `Display`, so that the words of a failed test are plain.
impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}
