//! What is said on the pipe to a peer: `peers/PROTOCOL.md`, in types.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::participant::{
    Acquired, Extended, Fault, Fenced, Led, Participant, Proclaimed, Released,
};

/// What a driver says when it listens.
pub const READY: &str = "ready";

/// A line to the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// [`Participant::acquire`].
    Acquire {
        /// Without white space.
        name: String,
        /// None is a lock without an end.
        lease: Option<Duration>,
        /// Zero is one attempt.
        wait: Duration,
    },
    /// [`Participant::release`].
    Release,
    /// [`Participant::extend`].
    Extend {
        /// Its length from now on.
        lease: Duration,
    },
    /// [`Participant::fence`].
    Fence,
    /// [`Participant::proclaim`].
    Proclaim {
        /// Without white space.
        value: String,
    },
    /// [`Participant::leader`].
    Leader {
        /// Without white space.
        name: String,
    },
    /// [`Participant::observe`].
    Observe {
        /// Without white space.
        name: String,
        /// How long to wait for a change.
        wait: Duration,
    },
}

impl Request {
    /// Does it, and says what the driver is to answer.
    pub fn answer(&self, participant: &mut dyn Participant) -> String {
        let said = match self {
            Self::Acquire { name, lease, wait } => {
                participant.acquire(name, *lease, *wait).map(Word::word)
            }
            Self::Release => participant.release().map(Word::word),
            Self::Extend { lease } => participant.extend(*lease).map(Word::word),
            Self::Fence => participant.fence().map(Word::word),
            Self::Proclaim { value } => participant.proclaim(value).map(Word::word),
            Self::Leader { name } => participant.leader(name).map(Word::word),
            Self::Observe { name, wait } => participant.observe(name, *wait).map(Word::word),
        };
        said.unwrap_or_else(|fault| error(&fault))
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire { name, lease, wait } => {
                write!(
                    f,
                    "acquire {name} {} {}",
                    lease.unwrap_or_default().as_millis(),
                    wait.as_millis()
                )
            }
            Self::Release => f.write_str("release"),
            Self::Extend { lease } => write!(f, "extend {}", lease.as_millis()),
            Self::Fence => f.write_str("fence"),
            Self::Proclaim { value } => write!(f, "proclaim {value}"),
            Self::Leader { name } => write!(f, "leader {name}"),
            Self::Observe { name, wait } => write!(f, "observe {name} {}", wait.as_millis()),
        }
    }
}

impl FromStr for Request {
    type Err = Fault;

    fn from_str(line: &str) -> Result<Self, Fault> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["acquire", name, lease, wait] => Ok(Self::Acquire {
                name: name.to_owned(),
                lease: Some(milliseconds(lease)?).filter(|lease| !lease.is_zero()),
                wait: milliseconds(wait)?,
            }),
            ["release"] => Ok(Self::Release),
            ["extend", lease] => Ok(Self::Extend {
                lease: milliseconds(lease)?,
            }),
            ["fence"] => Ok(Self::Fence),
            ["proclaim", value] => Ok(Self::Proclaim {
                value: value.to_owned(),
            }),
            ["leader", name] => Ok(Self::Leader {
                name: name.to_owned(),
            }),
            ["observe", name, wait] => Ok(Self::Observe {
                name: name.to_owned(),
                wait: milliseconds(wait)?,
            }),
            _ => Err(Fault::new(format!("cannot understand {line:?}"))),
        }
    }
}

/// An answer in a line.
pub trait Word: Sized {
    /// The answer of this line, if it is one.
    fn of(line: &str) -> Option<Self>;

    /// Its line.
    fn word(self) -> String;
}

/// The answer in a driver's line.
///
/// # Errors
///
/// When the driver says so, and when this is no answer to what was asked.
pub fn read<W: Word>(line: &str) -> Result<W, Fault> {
    W::of(line).ok_or_else(|| {
        Fault::new(
            line.strip_prefix("error ")
                .map_or_else(|| format!("said {line:?}"), str::to_owned),
        )
    })
}

/// The line for a fault.
#[must_use]
pub fn error(fault: &Fault) -> String {
    format!("error {}", fault.to_string().replace('\n', " "))
}

macro_rules! words {
    ($answer:ident: $($variant:ident = $word:literal),+) => {
        impl Word for $answer {
            fn of(line: &str) -> Option<Self> {
                match line {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }

            fn word(self) -> String {
                match self {
                    $(Self::$variant => $word.to_owned(),)+
                }
            }
        }
    };
}

words!(Acquired: Yes = "acquired", Busy = "busy");
words!(Released: Yes = "released", NotHeld = "not-held", Unsaid = "unsaid");
words!(Extended: Yes = "extended", NotHeld = "not-held");
words!(Proclaimed: Yes = "proclaimed", NotHeld = "not-held");

impl Word for Fenced {
    fn of(line: &str) -> Option<Self> {
        match line.split_once(' ') {
            Some(("fence", number)) => number.parse().ok().map(Self::By),
            None if line == "not-held" => Some(Self::NotHeld),
            _ => None,
        }
    }

    fn word(self) -> String {
        match self {
            Self::By(number) => format!("fence {number}"),
            Self::NotHeld => "not-held".to_owned(),
        }
    }
}

impl Word for Led {
    fn of(line: &str) -> Option<Self> {
        match line.split_once(' ') {
            Some(("leader", value)) => Some(Self::By(value.to_owned())),
            None if line == "nobody" => Some(Self::NoLeader),
            _ => None,
        }
    }

    fn word(self) -> String {
        match self {
            Self::By(value) => format!("leader {value}"),
            Self::NoLeader => "nobody".to_owned(),
        }
    }
}

fn milliseconds(word: &str) -> Result<Duration, Fault> {
    word.parse()
        .map(Duration::from_millis)
        .map_err(|_| Fault::new(format!("{word:?} is no number of milliseconds")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let second = Duration::from_secs(1);
        let requests = [
            Request::Acquire {
                name: "a".into(),
                lease: Some(second),
                wait: Duration::ZERO,
            },
            Request::Acquire {
                name: "a".into(),
                lease: None,
                wait: second,
            },
            Request::Release,
            Request::Extend { lease: second },
            Request::Fence,
            Request::Proclaim { value: "a".into() },
            Request::Leader { name: "a".into() },
            Request::Observe {
                name: "a".into(),
                wait: second,
            },
        ];
        for request in requests {
            assert_eq!(request.to_string().parse::<Request>().unwrap(), request);
        }
        "acquire a 1".parse::<Request>().unwrap_err();
        "extend soon".parse::<Request>().unwrap_err();
    }

    #[test]
    fn what_is_no_answer_is_a_fault() {
        assert_eq!(read::<Released>("unsaid"), Ok(Released::Unsaid));
        assert_eq!(read::<Fenced>("fence 7"), Ok(Fenced::By(7)));
        assert_eq!(read::<Led>("leader node-1"), Ok(Led::By("node-1".into())));
        assert_eq!(
            read::<Acquired>("released"),
            Err(Fault::new("said \"released\""))
        );
        assert_eq!(
            read::<Acquired>(&error(&Fault::new("two\nlines"))),
            Err(Fault::new("two lines"))
        );
    }
}
