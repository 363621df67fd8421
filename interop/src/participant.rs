use std::fmt;
use std::time::Duration;

/// A contender for a lock, which holds one at most.
pub trait Participant: Send {
    /// Asks for `name`, and waits for at most `wait`; zero is one attempt. A lock without a lease
    /// does not expire.
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

    /// The number of the grant that it acquired last.
    ///
    /// # Errors
    ///
    /// When there is no answer, or the lock has no such number.
    fn fence(&mut self) -> Result<Fenced, Fault> {
        Err(Fault::new("no fence here"))
    }

    /// In an election, where to acquire is to campaign and to release to resign: changes the value
    /// that others see.
    ///
    /// # Errors
    ///
    /// When there is no answer, or no election.
    fn proclaim(&mut self, value: &str) -> Result<Proclaimed, Fault> {
        Err(Fault::new(format!(
            "no election here: cannot proclaim {value}"
        )))
    }

    /// The current leader.
    ///
    /// # Errors
    ///
    /// When there is no answer, or no election.
    fn leader(&mut self, name: &str) -> Result<Led, Fault> {
        Err(Fault::new(format!(
            "no election here: cannot say who leads {name}"
        )))
    }

    /// The next leader, or the next value of the leader, as pushed by the library.
    /// [`Led::NoLeader`] when nothing changes for so long.
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
    /// Another participant held it all the time.
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

/// The answer to [`Participant::fence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fenced {
    /// Its lock has this number.
    By(u64),
    /// It holds nothing.
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
    /// The leader that proclaims this value.
    By(String),
    /// There is no leader.
    NoLeader,
}

/// Why there is no answer.
#[derive(Clone, PartialEq, Eq)]
pub struct Fault(String);

impl Fault {
    /// A fault in these words.
    pub fn new(words: impl Into<String>) -> Self {
        Self(words.into())
    }

    /// The message of another error.
    pub fn of(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// As `Display`, so that a failed test prints plain words.
impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}
