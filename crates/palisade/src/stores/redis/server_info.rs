//! Describes the server that answers.

use redis::Value;

use super::backend::Backend;
use super::client::{Call, Server};
use crate::error::Result;
use crate::store::ServerInfo;

/// Shows a lock by this call, and describes the server that answered. The call fails where rights to
/// run scripts or to read keys are missing.
pub(super) async fn ping(backend: &Backend, show: &Call) -> Result<ServerInfo> {
    let called = backend.call(show).await?;
    Ok(describe(&called.server).await)
}

/// A server that refuses HELLO is shown without version and role.
pub(in crate::stores) async fn describe(server: &Server) -> ServerInfo {
    let hello = match server.ask(redis::cmd("HELLO")).await {
        Ok(Value::Map(pairs)) => pairs,
        _ => Vec::new(),
    };
    let word = |wanted: &str| {
        let (_, value) = hello
            .iter()
            .find(|(word, _)| text(word).as_deref() == Some(wanted))?;
        text(value)
    };
    ServerInfo {
        product: word("server").unwrap_or_else(|| "redis".to_owned()),
        version: word("version"),
        role: word("role"),
        address: Some(server.address.to_string()),
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}
