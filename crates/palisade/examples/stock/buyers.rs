//! Buyers who come at once.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::Result;
use super::table::Sale;

/// So many counters serve the many buyers, each with a connection of its own.
pub const COUNTERS: usize = 8;

/// One that can buy: reads the stock, thinks, and writes what is left.
pub trait Buyer: Send + 'static {
    /// Whether so many pieces were sold to it.
    fn buy(&mut self, wanted: i64) -> impl Future<Output = Result<bool>> + Send;
}

/// Between reading and writing.
#[derive(Clone)]
pub enum Think {
    /// Until the other has read as well, or for so long: with a lock the other cannot.
    Together(Arc<Barrier>, Duration),
    /// For a moment.
    Briefly,
}

impl Think {
    /// Two who both have read before one of them writes.
    pub fn both() -> Think {
        Think::Together(Arc::new(Barrier::new(2)), Duration::from_secs(60))
    }

    /// Two of whom the second should not be able to read.
    pub fn one() -> Think {
        Think::Together(Arc::new(Barrier::new(2)), Duration::from_millis(100))
    }

    pub async fn think(&self) {
        match self {
            Think::Together(barrier, longest) => {
                let _ = tokio::time::timeout(*longest, barrier.wait()).await;
            }
            Think::Briefly => {
                tokio::time::sleep(Duration::from_micros(fastrand::u64(..2000))).await;
            }
        }
    }
}

/// Two orders of 60 pieces.
pub const TWO: [i64; 2] = [60, 60];

/// 200 orders, the same in each run. More than a hundred are for one piece, so that a shop that
/// never oversells is empty in the end, whatever the order.
pub fn many() -> Vec<i64> {
    let mut random = fastrand::Rng::with_seed(42);
    let mut orders: Vec<i64> = (0..200)
        .map(|number| if number < 120 { 1 } else { random.i64(2..=5) })
        .collect();
    random.shuffle(&mut orders);
    orders
}

/// The buyers serve themselves from the orders until there is none.
pub async fn sell<B: Buyer>(buyers: Vec<B>, orders: &[i64]) -> Result<Sale> {
    let (orders, next) = (Arc::new(orders.to_vec()), Arc::new(AtomicUsize::new(0)));
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for mut buyer in buyers {
        let (orders, next) = (Arc::clone(&orders), Arc::clone(&next));
        tasks.spawn(async move {
            let (mut sold, mut refused) = (0, 0);
            while let Some(wanted) = orders.get(next.fetch_add(1, Ordering::Relaxed)) {
                match buyer.buy(*wanted).await? {
                    true => sold += wanted,
                    false => refused += 1,
                }
            }
            Result::Ok((sold, refused))
        });
    }
    let (mut sold, mut refused) = (0, 0);
    while let Some(ended) = tasks.join_next().await {
        let (more, fewer) = ended??;
        sold += more;
        refused += fewer;
    }
    Ok(Sale {
        sold,
        refused,
        time: begun.elapsed(),
    })
}
