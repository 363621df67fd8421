//! The cost of a run under a lock beside the bare command, over the network.

use super::spread::Spread;
use super::verdict::{Verdicts, Wanted};
use super::{Result, Setting};
use crate::cli;

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    let cost = cli::measure(&setting.ours)?;
    cost.print();
    verdicts.judge(
        "cli: more, in ms",
        Spread::of([cost.more()]),
        Wanted::AtMost(cli::WANTED),
    );
    Ok(())
}
