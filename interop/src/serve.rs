use std::io::{self, BufRead, Write};

use crate::participant::{Fault, Participant};
use crate::protocol::{READY, Request, error};

/// Lets a participant be driven over stdin and stdout, until stdin ends.
///
/// # Errors
///
/// When the pipe breaks.
pub fn serve(participant: &mut dyn Participant) -> Result<(), Fault> {
    say(READY)?;
    for line in io::stdin().lock().lines() {
        let answer = match line.map_err(Fault::of)?.parse::<Request>() {
            Ok(request) => request.answer(participant),
            Err(fault) => error(&fault),
        };
        say(&answer)?;
    }
    Ok(())
}

fn say(line: &str) -> Result<(), Fault> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(Fault::of)
}
