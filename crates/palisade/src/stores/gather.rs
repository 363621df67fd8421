//! Requests that find others on their way gather, and go together: one request to the server, however many ask.
//!
//! Whoever asks alone waits for nobody, and pays nothing.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Who takes requests to the server.
pub(super) trait Carries: Send + Sync + 'static {
    type Request: Send + 'static;
    type Answer: Send + 'static;

    /// Whether one who asks alone is woken by nothing but the answer. Then his turn ends with that, however late he looks for it.
    /// Otherwise whoever asks must be a task that looks when it is woken, or others must not have patience for ever.
    const ANSWER_WAKES: bool = false;

    /// Whether a request may go with these. What one of them does must not depend on what another does.
    fn fits(&self, group: &[Self::Request], request: &Self::Request) -> bool;

    /// Takes a group to the server: one answer for each, in their order. A group of one is the usual request.
    fn carry(&self, group: Vec<Self::Request>) -> impl Future<Output = Vec<Self::Answer>> + Send;

    /// Takes one request to the server that goes alone; `None` when it cannot be carried.
    fn carry_alone(&self, request: Self::Request) -> impl Future<Output = Option<Self::Answer>> + Send {
        async { self.carry(vec![request]).await.pop() }
    }

    /// Completes when nobody must wait for a group any more: it may never be carried. Waited for beside the answer.
    fn given_up(&self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Whether those that do not fit into a group wait for it. Where they need not, they go beside it: waiting would not spare a request.
    fn misfits_wait(&self) -> bool {
        true
    }

    /// For how long others wait for a group that is on its way. After that they go without waiting for its answer: whatever holds it
    /// up need not hold them up.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// Sleeps, for whoever has patience: his own runtime may have no timers.
    fn sleep(&self, span: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(span)
    }
}

pub(super) struct Gather<C: Carries> {
    carrier: C,
    /// Where groups are carried. Whoever asks alone carries his request himself.
    runtime: Handle,
    /// How many groups may be on their way before others wait for them.
    at_once: usize,
    /// How many go together at most.
    most: usize,
    state: Mutex<State<C>>,
    /// Had by the group whose answers are given out.
    gives_out: tokio::sync::Mutex<()>,
}

struct State<C: Carries> {
    /// Those on their way that others wait for, by number, and since when.
    turns: Vec<(u64, Instant)>,
    last_turn: u64,
    waiting: VecDeque<Waiting<C>>,
    /// Turns that were left, and not given to others yet.
    left: usize,
    /// Whether somebody gives turns to others just now.
    gives_turns: bool,
}

impl<C: Carries> State<C> {
    fn take_turn(&mut self) -> u64 {
        self.last_turn += 1;
        self.turns.push((self.last_turn, Instant::now()));
        self.last_turn
    }

    /// Ends a turn; `false` when it was taken away before.
    fn leave_turn(&mut self, number: u64) -> bool {
        let at = self.turns.iter().position(|(turn, _)| *turn == number);
        at.is_some_and(|at| {
            self.turns.swap_remove(at);
            self.left += 1;
            true
        })
    }

    /// Takes the turns away of those that have been on their way for so long.
    fn take_away(&mut self, patience: Duration) {
        let before = self.turns.len();
        self.turns.retain(|(_, since)| since.elapsed() < patience);
        self.left += before - self.turns.len();
    }
}

struct Waiting<C: Carries> {
    request: C::Request,
    reply: oneshot::Sender<C::Answer>,
}

/// Those that go together, and who waits for each answer.
struct Group<C: Carries> {
    turn: u64,
    requests: Vec<C::Request>,
    replies: Vec<oneshot::Sender<C::Answer>>,
    /// How many did not fit.
    misfits: usize,
}

impl<C: Carries> Gather<C> {
    pub(super) fn new(carrier: C, runtime: Handle, at_once: usize, most: usize) -> Arc<Gather<C>> {
        let state = State { turns: Vec::new(), last_turn: 0, waiting: VecDeque::new(), left: 0, gives_turns: false };
        Arc::new(Gather { carrier, runtime, at_once, most, state: Mutex::new(state), gives_out: tokio::sync::Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State<C>> {
        locked(&self.state)
    }

    /// Sends a request, alone or with others, and waits for its answer; `None` when the runtime that carries it has ended, or
    /// the carrier has given up.
    ///
    /// Dropped before it went, it never goes. Dropped later, nobody knows whether it arrived.
    pub(super) async fn ask(self: &Arc<Self>, request: C::Request) -> Option<C::Answer> {
        let asking = {
            let mut state = self.lock();
            if state.turns.len() + state.left < self.at_once {
                Ok((request, state.take_turn()))
            } else {
                let (reply, answer) = oneshot::channel();
                state.waiting.push_back(Waiting { request, reply });
                Err(answer)
            }
        };
        match asking {
            Ok((request, turn)) => self.ask_alone(request, Turn::of(self, turn)).await,
            // Boxed: whoever goes alone needs no room for it.
            Err(answer) => Box::pin(self.wait_for(answer)).await,
        }
    }

    async fn ask_alone(&self, request: C::Request, turn: Turn<C>) -> Option<C::Answer> {
        let mut carried = pin!(self.carrier.carry_alone(request));
        if !C::ANSWER_WAKES {
            let _turn = turn;
            return carried.await;
        }
        let alone = Arc::new(Alone { turn: Mutex::new(Some(turn)), caller: Mutex::default() });
        let _leaves = Leaves(&alone);
        let waker = Waker::from(Arc::clone(&alone));
        let answer = poll_fn(|context| {
            alone.is_polled_by(context.waker());
            carried.as_mut().poll(&mut Context::from_waker(&waker))
        });
        answer.await
    }

    /// Waits to go with others, and for the answer. Whoever is on the way for too long is not waited for.
    async fn wait_for(self: &Arc<Self>, mut answer: oneshot::Receiver<C::Answer>) -> Option<C::Answer> {
        let mut given_up = pin!(self.carrier.given_up());
        loop {
            let impatient = async {
                match self.carrier.patience() {
                    Some(patience) => {
                        self.carrier.sleep(patience).await;
                        patience
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                answer = &mut answer => return answer.ok(),
                () = given_up.as_mut() => return None,
                patience = impatient => {
                    let mut state = self.lock();
                    state.take_away(patience);
                    self.give_turns(state);
                }
            }
        }
    }

    /// Sends the next group; `false` when nobody waits. One that was on its way has arrived.
    fn go_on(self: &Arc<Self>, turn: u64) -> bool {
        let mut state = self.lock();
        state.leave_turn(turn) && self.give_turns(state)
    }

    /// Gives the turns that were left to those who wait; `false` when nobody does.
    fn give_turns<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State<C>>) -> bool {
        // Not one within the other: a runtime that has ended drops a group while it is given to it, and calls us from there.
        if std::mem::replace(&mut state.gives_turns, true) {
            return true;
        }
        let mut others_go = false;
        while state.left > 0 {
            state.left -= 1;
            while let Some(group) = self.next(&mut state) {
                let misfits = group.misfits;
                drop(state);
                self.send(group);
                state = self.lock();
                others_go = true;
                if misfits == 0 || self.carrier.misfits_wait() {
                    break;
                }
            }
        }
        state.gives_turns = false;
        others_go
    }

    fn send(self: &Arc<Self>, Group { turn, requests, replies, .. }: Group<C>) {
        // Here, not in the task: a runtime that has ended drops it unseen.
        let turn = Turn::of(self, turn);
        self.runtime.spawn(async move {
            let gather = Arc::clone(&turn.gather);
            let answers = gather.carrier.carry(requests).await;
            // Answers come together where several groups are done in one go. They are given out one group after the other, and in
            // between leaves what those who have theirs ask next: else all would think while the server has nothing to do,
            // and all wait while it works.
            let _gives_out = gather.gives_out.lock().await;
            if turn.pass_on() {
                tokio::task::yield_now().await;
            }
            for (reply, answer) in replies.into_iter().zip(answers) {
                // Nobody may wait for it any more.
                drop(reply.send(answer));
            }
            tokio::task::yield_now().await;
        });
    }

    /// Those of the waiting that go together now.
    fn next(&self, state: &mut State<C>) -> Option<Group<C>> {
        let (mut requests, mut replies) = (Vec::new(), Vec::new());
        let mut stay = VecDeque::new();
        // Where misfits do not wait, the rest is looked at for the next group: not all of it for each.
        while requests.len() < self.most && (self.carrier.misfits_wait() || stay.len() < self.most) {
            let Some(waiting) = state.waiting.pop_front() else { break };
            if waiting.reply.is_closed() {
                continue;
            }
            // Whoever goes first fits.
            if requests.is_empty() || self.carrier.fits(&requests, &waiting.request) {
                requests.push(waiting.request);
                replies.push(waiting.reply);
            } else {
                stay.push_back(waiting);
            }
        }
        let misfits = stay.len();
        while let Some(waiting) = stay.pop_back() {
            state.waiting.push_front(waiting);
        }
        let turn = (!requests.is_empty()).then(|| state.take_turn())?;
        Some(Group { turn, requests, replies, misfits })
    }
}

/// A place among those that are on their way. Whoever leaves it, answered or not, sends the next.
struct Turn<C: Carries> {
    gather: Arc<Gather<C>>,
    number: u64,
    /// Whether somebody else has it.
    passed_on: bool,
}

impl<C: Carries> Turn<C> {
    fn of(gather: &Arc<Gather<C>>, number: u64) -> Turn<C> {
        Turn { gather: Arc::clone(gather), number, passed_on: false }
    }

    /// Leaves; `true` when others go in its place.
    fn pass_on(mut self) -> bool {
        self.passed_on = true;
        self.gather.go_on(self.number)
    }
}

impl<C: Carries> Drop for Turn<C> {
    fn drop(&mut self) {
        if !self.passed_on {
            self.gather.go_on(self.number);
        }
    }
}

/// One who asked alone, and carries his request himself. Nobody knows when he will look for the answer: his turn ends when it is
/// there.
struct Alone<C: Carries> {
    turn: Mutex<Option<Turn<C>>>,
    caller: Mutex<Option<Waker>>,
}

impl<C: Carries> Alone<C> {
    fn is_polled_by(&self, waker: &Waker) {
        let mut caller = locked(&self.caller);
        if !caller.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *caller = Some(waker.clone());
        }
    }

    fn give_turn_away(&self) {
        let turn = locked(&self.turn).take();
        drop(turn);
    }
}

impl<C: Carries> Wake for Alone<C> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if C::ANSWER_WAKES {
            self.give_turn_away();
        }
        let caller = locked(&self.caller).clone();
        if let Some(caller) = caller {
            caller.wake();
        }
    }
}

/// Whoever leaves, answered or not, does not keep the turn.
struct Leaves<'a, C: Carries>(&'a Alone<C>);

impl<C: Carries> Drop for Leaves<'_, C> {
    fn drop(&mut self) {
        self.0.give_turn_away();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
