//! The same while one server hangs: stopped, with its connections open. The rounds begin with the
//! moment at which it stops, before any client can know.

use std::time::{Duration, Instant};

use super::lock::Side;
use super::{Result, Setting};
use crate::compare::caller_kind::{Caller, CallerKind};
use crate::compare::cpu_pinning::CpuPinning;
use crate::compare::round::{Round, ratio, spread, take_turns};
use crate::compare::verdict::{Verdicts, Wanted};
use crate::usage;

/// All servers are reached again, and have their votes, when it is over.
const WARM: Duration = Duration::from_secs(2);

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    let _pinned = CpuPinning::apply(&setting.servers)?;
    let caller = Caller::new(CallerKind::Body)?;
    let url = setting.ours.clone();
    let ours = Side::Ours(caller.call(async move { Ok(palisade::connect(url).await?) })?);
    let last = setting.servers.last().ok_or("no server")?;
    let [whole, hung] = take_turns(&[false, true], |hangs| {
        caller.call(ours.cycles(WARM))?;
        if *hangs {
            last.pause();
        }
        // Servers are not asked for their CPU time: one of them would not answer.
        let (cpu, begun) = (usage::cpu(), Instant::now());
        let times = caller.call(ours.cycles(setting.round));
        let (elapsed, cpu) = (begun.elapsed(), usage::cpu().saturating_sub(cpu));
        if *hangs {
            last.resume();
        }
        Ok(Round::new(times?, elapsed, cpu, Duration::ZERO))
    })?;
    for (who, rounds) in [("all answer", &whole), ("one hangs", &hung)] {
        spread(rounds, |round| round.per_second).print(who, "cycles/s");
        spread(rounds, |round| round.p50).print(&format!("{who}, p50"), "µs");
        spread(rounds, |round| round.p99).print(&format!("{who}, p99"), "µs");
    }
    verdicts.judge(
        "one hangs / all answer",
        ratio(&hung, &whole, |round| round.per_second),
        Wanted::AtLeast(0.9),
    );
    Ok(())
}
