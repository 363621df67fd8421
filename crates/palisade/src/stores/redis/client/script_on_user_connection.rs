//! Scripts on a connection that the user brings: for `fence::redis` and `versioned::redis`.

use std::sync::OnceLock;

use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind};

/// A Lua script: one atomic step of the server, one round trip. It replies a list of strings.
pub(crate) struct UserScript {
    text: &'static str,
    sha: OnceLock<String>,
}

impl UserScript {
    pub(crate) const fn new(text: &'static str) -> UserScript {
        UserScript {
            text,
            sha: OnceLock::new(),
        }
    }

    /// Calls it by its hash. A server that does not know it, new or flushed, is sent the whole
    /// text: one round trip more.
    pub(crate) async fn run<C>(
        &self,
        connection: &mut C,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> RedisResult<Vec<Vec<u8>>>
    where
        C: ConnectionLike + Send,
    {
        match self
            .command("EVALSHA", self.sha(), keys, args)
            .query_async(connection)
            .await
        {
            // Nothing was done, and EVAL needs no script to be known: a flush in between cannot
            // hurt.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.command("EVAL", self.text, keys, args)
                    .query_async(connection)
                    .await
            }
            answer => answer,
        }
    }

    fn sha(&self) -> &str {
        self.sha
            .get_or_init(|| redis::Script::new(self.text).get_hash().to_owned())
    }

    fn command(&self, verb: &str, script: &str, keys: &[&[u8]], args: &[&[u8]]) -> Cmd {
        let size = [keys, args]
            .concat()
            .iter()
            .map(|word| word.len())
            .sum::<usize>();
        let mut command = Cmd::with_capacity(3 + keys.len() + args.len(), script.len() + size + 64);
        command
            .arg(verb)
            .arg(script)
            .arg(keys.len())
            .arg(keys)
            .arg(args);
        command
    }
}

/// Whether the server refused the script, and so has changed nothing. After any other error it may
/// have run the script.
pub(crate) fn is_refusal(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}
