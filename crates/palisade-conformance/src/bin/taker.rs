//! The helper of the checks across processes: `taker URL NAME LEASE_MS` acquires, prints its fence,
//! and releases when a line comes in. It is mostly killed.

use std::time::Duration;

use palisade::blocking::Wait;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let (Some(url), Some(name), Some(lease)) = (words.next(), words.next(), words.next()) else {
        return Err("usage: taker URL NAME LEASE_MS".into());
    };
    let locks = palisade::connect(url).wait()?;
    let guard = locks
        .mutex(name)
        .lease(Duration::from_millis(lease.parse()?))
        .acquire()
        .wait()?;
    println!("{}", guard.fence());
    std::io::stdin().read_line(&mut String::new())?;
    let _ = guard.release().wait()?;
    Ok(())
}
