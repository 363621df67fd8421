//! Many tasks of one process: each on a name of its own, or several on each name.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::Setting;
use super::lock::Side;
use super::raw::{Raw, create_table};
use crate::compare::caller_kind::{Caller, CallerKind};
use crate::compare::round::{self, Round, ratio, spread, take_turns};
use crate::compare::verdict::{Verdicts, Wanted};
use crate::compare::{Result, Server as _};

const NAMES: usize = 64;
const WARM: Duration = Duration::from_millis(200);

struct Load {
    what: &'static str,
    /// How many tasks want each name. Each of them has another of our clients.
    contenders: usize,
    /// How many connections the tasks of raw share.
    connections: usize,
    wanted: f64,
}

pub(super) fn run(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    let load = Load {
        what: "64 tasks",
        contenders: 1,
        connections: 8,
        wanted: setting.database.tasks,
    };
    one(setting, &load, verdicts)
}

pub(super) fn run_contended(setting: &Setting, verdicts: &mut Verdicts) -> Result<()> {
    let load = Load {
        what: "64 names, 4 tasks each",
        contenders: 4,
        connections: 16,
        wanted: setting.database.names,
    };
    one(setting, &load, verdicts)
}

fn one(setting: &Setting, load: &Load, verdicts: &mut Verdicts) -> Result<()> {
    let caller = Caller::new(CallerKind::Body)?;
    let (ours, raw) = caller.wait(connect(setting, load))?;
    let sides = [(ours, load.contenders), (raw, load.contenders)];
    let all = |(clients, contenders): &(Vec<Side>, usize), length| {
        caller.wait(all(clients.clone(), *contenders, length))
    };
    for side in &sides {
        all(side, WARM)?;
    }
    let measured = take_turns(&sides, |side| {
        let before = setting.server.counted()?;
        let mut cycles = 0;
        let round = Round::measure(&setting.server, || {
            let times = all(side, setting.round)?;
            cycles = times.len();
            Ok(times)
        })?;
        let counted = setting.server.counted()?.into_iter().zip(before);
        let statements: f64 = counted.map(|(after, before)| after - before).sum();
        Ok((round, statements / cycles as f64))
    })?;
    let [ours, raw] = measured;
    let what = load.what;
    for (who, rounds) in [("ours", &ours), ("raw", &raw)] {
        let who = format!("{what}: {who}");
        spread(rounds, |(_, statements)| *statements).print(&who, "statements/cycle");
    }
    let only_rounds = |rounds: Vec<(Round, f64)>| -> Vec<Round> {
        rounds.into_iter().map(|(round, _)| round).collect()
    };
    let (ours, raw) = (only_rounds(ours), only_rounds(raw));
    round::print(&format!("{what}: ours"), &ours, "cycle");
    round::print(&format!("{what}: raw"), &raw, "cycle");
    verdicts.judge(
        format!("{what}: ours / raw"),
        ratio(&ours, &raw, |round| round.per_second),
        Wanted::AtLeast(load.wanted),
    );
    Ok(())
}

async fn connect(setting: &Setting, load: &Load) -> Result<(Vec<Side>, Vec<Side>)> {
    create_table(setting.server.url()).await?;
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for _ in 0..load.contenders {
        ours.push(Side::Ours(palisade::connect(&setting.ours).await?));
    }
    for _ in 0..load.connections {
        raw.push(Side::Raw(Raw::connect(setting.server.url()).await?));
    }
    Ok((ours, raw))
}

async fn all(clients: Vec<Side>, contenders: usize, length: Duration) -> Result<Vec<Duration>> {
    let end = Instant::now() + length;
    let mut tasks = JoinSet::new();
    let mut clients = clients.iter().cycle();
    for name in 0..NAMES {
        let held = Arc::new(AtomicBool::new(false));
        for _ in 0..contenders {
            let client = clients.next().ok_or("no client")?;
            let lock = client.lock(&format!("tasks/{name}"));
            tasks.spawn(lock.cycle_until(end, Arc::clone(&held)));
        }
    }
    let mut times = Vec::new();
    while let Some(cycled) = tasks.join_next().await {
        times.extend(cycled??);
    }
    Ok(times)
}
