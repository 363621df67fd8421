//! `stores`: what each store can do and promises.

use palisade::store::{Capability, Detach, Durability, FenceSource, LeaseUnit, Order, Wakes};
use palisade::stores::capabilities;
use serde_json::json;

use crate::args::StoresArgs;
use crate::exit::{Exit, Failure};
use crate::inspect::table;
use crate::notice::print;

const ADVICE: &str = "
One machine, no server: sqlite. Tests, or threads of one process: memory.
Several machines: redis; its formats simple and redisson share locks with other languages' libraries, palisade can do more.
Several machines, and no failover may forget a grant: etcd, whose locks etcdctl and Go programs share;
or zookeeper, whose locks Java programs (Curator) share, or Python ones (kazoo).
Several independent Redis servers, and programs that lock by Redlock: redlock.
Several machines, and a database that you already run: postgres or mysql, which keep the line in its tables.
Whatever you choose: only a resource that checks the fence refuses a stale write.
";

pub(crate) fn stores(args: &StoresArgs) -> Result<Exit, Failure> {
    if args.output.json {
        print(
            &capabilities()
                .map(|capability| format!("{}\n", as_json(capability)))
                .collect::<String>(),
        )?;
        return Ok(Exit::DONE);
    }
    if args.markdown {
        print_markdown();
        return Ok(Exit::DONE);
    }
    let head = [
        "STORE",
        "FORMAT",
        "LOSES A GRANT BY",
        "ORDER",
        "WAKES BY",
        "FENCE",
        "LEASE",
        "KINDS",
        "ELECTION",
    ]
    .map(str::to_owned);
    let rows: Vec<[String; 9]> = std::iter::once(head)
        .chain(capabilities().map(row))
        .collect();
    print(&format!("{}{ADVICE}", table(&rows)))?;
    Ok(Exit::DONE)
}

/// The table that the documentation has between its markers; a test compares them.
fn print_markdown() {
    println!(
        "| store | format | loses a grant by | order | wakes by | fence | kinds | election | a grant can be handed to |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for capability in capabilities() {
        let [
            store,
            format,
            loses,
            order,
            wakes,
            fence,
            _,
            kinds,
            election,
        ] = row(capability);
        let heirs = heirs(capability.detach);
        println!(
            "| `{store}` | {format} | {loses} | {order} | {wakes} | {fence} | {kinds} | {election} | {heirs} |"
        );
    }
}

fn row(capability: &Capability) -> [String; 9] {
    let mut kinds = vec!["mutex"];
    kinds.extend(capability.rwlock.then_some("rwlock"));
    kinds.extend(capability.semaphore.then_some("semaphore"));
    [
        capability.store.to_owned(),
        capability.format.to_owned(),
        durability(capability.durability).to_owned(),
        order(capability.order).to_owned(),
        wakes(capability.wakes).to_owned(),
        fence(capability.fence).to_owned(),
        lease(capability.lease_unit).to_owned(),
        kinds.join(", "),
        election(capability).to_owned(),
    ]
}

fn as_json(capability: &Capability) -> serde_json::Value {
    let millis = |span: std::time::Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    json!({
        "store": capability.store,
        "format": capability.format,
        "durability": durability(capability.durability),
        "order": order(capability.order),
        "wakes": wakes(capability.wakes),
        "fence": fence(capability.fence),
        "lease": lease(capability.lease_unit),
        "min_lease_ms": millis(capability.min_lease),
        "max_lease_ms": millis(capability.max_lease),
        "rwlock": capability.rwlock,
        "semaphore": capability.semaphore,
        "min_hold": capability.min_hold,
        "once_per": capability.once_per,
        "proclaim": capability.proclaim,
        "observe": capability.observe,
        "detach": capability.detach == Detach::Anywhere,
        "list": capability.list,
        "holders_known": capability.holders_known,
        "waiters_known": capability.waiters_known,
        "revoke": capability.revoke,
    })
}

fn durability(durability: Durability) -> &'static str {
    match durability {
        Durability::Process => "the end of the process",
        Durability::Machine => "a restart of the machine",
        Durability::Server => "a restart or failover of the server",
        Durability::Failover => "a failover of the server",
        Durability::Quorum => "the loss of a majority",
    }
}

fn order(order: Order) -> &'static str {
    match order {
        Order::Fifo => "first come, first served",
        Order::Engine => "the engine's own",
        Order::None => "none",
    }
}

fn wakes(wakes: Wakes) -> &'static str {
    match wakes {
        Wakes::Push => "push",
        Wakes::Watch => "watch",
        Wakes::Engine => "the engine",
        Wakes::Poll => "polling",
    }
}

fn fence(fence: FenceSource) -> &'static str {
    match fence {
        FenceSource::Counter => "counter",
        FenceSource::CounterAndClock => "counter and clock",
        FenceSource::Clock => "clock",
        FenceSource::Revision => "revision",
        FenceSource::None => "none",
    }
}

fn election(capability: &Capability) -> &'static str {
    if capability.observe {
        "observed"
    } else if !capability.holders_known {
        "leader not known"
    } else {
        "asked"
    }
}

fn heirs(detach: Detach) -> &'static str {
    match detach {
        Detach::Never => "no other client",
        Detach::InProcess => "another client of the process",
        Detach::Anywhere => "any process",
    }
}

fn lease(unit: LeaseUnit) -> &'static str {
    match unit {
        LeaseUnit::Claim => "of each claim",
        LeaseUnit::Session => "of the session",
    }
}
