//! Runs other kinds of lock as a mutex: the write side of a rwlock and a semaphore of one pass the
//! checks of a mutex, too.

use std::sync::Arc;

use async_trait::async_trait;
use palisade::Result;
use palisade::store::{
    Answer, Change, Claim, ClaimRef, Ending, Kind, Mode, Page, Query, Released, Standing, Store,
};

use crate::around::{Around, Wrapped};

/// The kind as which every mutex claim is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum As {
    /// A mutex.
    Mutex,
    /// The write side of a rwlock.
    Writer,
    /// The one permit of a semaphore.
    Semaphore,
}

const ONE_PERMIT: Kind = Kind::Semaphore { limit: 1 };

/// A store whose mutexes are something else.
pub struct Adapted {
    store: Arc<dyn Store>,
    kind: As,
}

impl Adapted {
    /// Makes every mutex claim of this store another kind.
    pub fn over(store: Arc<dyn Store>, kind: As) -> Arc<dyn Store> {
        if kind == As::Mutex {
            store
        } else {
            Arc::new(Wrapped(Arc::new(Adapted { store, kind })))
        }
    }
}

impl Adapted {
    fn adapt(&self, claim: &Arc<Claim>) -> Arc<Claim> {
        let (kind, mode) = match (self.kind, claim.kind) {
            (As::Writer, Kind::Mutex) => (Kind::RwLock, Mode::Exclusive),
            (As::Semaphore, Kind::Mutex) => (ONE_PERMIT, Mode::Permits(1)),
            _ => return Arc::clone(claim),
        };
        Arc::new(Claim {
            kind,
            mode,
            ..Claim::clone(claim)
        })
    }

    fn adapt_ref(&self, claim: &ClaimRef) -> ClaimRef {
        self.adapt(&claim.claim).to_ref(claim.fence)
    }
}

#[async_trait]
impl Around for Adapted {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn claim(&self, claim: &Arc<Claim>) -> Result<Answer> {
        self.store.claim(&self.adapt(claim)).await
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Result<Standing>> {
        let claims: Vec<_> = claims.iter().map(|claim| self.adapt_ref(claim)).collect();
        self.store.renew(&claims).await
    }

    async fn release(&self, claim: &ClaimRef, ending: Ending) -> Result<Released> {
        self.store.release(&self.adapt_ref(claim), ending).await
    }

    async fn change(&self, claim: &ClaimRef, to: Change) -> Result<Standing> {
        self.store.change(&self.adapt_ref(claim), to).await
    }

    /// The client asks for its mutexes, and finds them by their kind.
    async fn inspect(&self, query: &Query) -> Result<Page> {
        let mut page = self.store.inspect(query).await?;
        for line in &mut page.lines {
            if (self.kind, line.kind) == (As::Semaphore, ONE_PERMIT) {
                line.kind = Kind::Mutex;
            }
        }
        Ok(page)
    }
}
