//! A connection by which whoever asks writes his request himself.
//!
//! The library's channel hands a request from task to task: to one that guards the channel, to one that opens its stream, and to
//! one that sends its body once the stream is open. Each is a turn of the scheduler, and where a runtime has several threads, a thread
//! that is woken. Here the caller puts headers and body into the stream in one go, the connection writes both in one packet,
//! and the answer wakes the caller alone.
//!
//! It is only ever opened beside a channel that has answered, and only without TLS. Whatever is wrong with it, the channel is asked
//! instead: that one connects, connects again, and says what the matter is.

use h2::client::{Builder, ResponseFuture, SendRequest};
use prost::Message;
use tokio::runtime::Handle;
use tonic::Status;
use tonic::codegen::Bytes;
use tonic::codegen::http::header::{CONTENT_TYPE, HeaderValue, TE, USER_AGENT};
use tonic::codegen::http::uri::{Authority, PathAndQuery, Scheme};
use tonic::codegen::http::{HeaderMap, Method, Request, StatusCode, Uri, Version};
use tonic::transport::Endpoint;

use super::members::{LONGEST_ANSWER, Token};
use super::packed::Connector;

/// How much a server may send before it is told that it was read: of one answer, and of all.
const WINDOW: (u32, u32) = (2 << 20, 5 << 20);
/// Whether what follows is compressed, and how long it is.
const PREFIX: usize = 5;

/// A connection to one member, for as long as it lives.
pub(super) struct Direct {
    requests: SendRequest<Bytes>,
    authority: Authority,
}

/// What became of a question.
pub(super) enum Asked<A> {
    /// It did not leave: the connection is not there any more.
    NotSent,
    Sent(Result<A, Status>),
}

impl Direct {
    /// Whether there can be one.
    pub(super) fn can_be(endpoint: &Endpoint) -> bool {
        endpoint.uri().scheme() == Some(&Scheme::HTTP)
    }

    /// Connects; what drives the connection lives in this runtime, until nobody has the connection any more. `None` where it cannot be:
    /// the channel says why.
    pub(super) async fn open(endpoint: &Endpoint, connector: Connector, runtime: &Handle) -> Option<Direct> {
        let uri = endpoint.uri();
        let authority = uri.authority()?.clone();
        let stream = connector.plain(uri.clone()).await.ok()?;
        let mut builder = Builder::new();
        builder.initial_window_size(WINDOW.0).initial_connection_window_size(WINDOW.1).enable_push(false);
        let (requests, connection) = builder.handshake(stream).await.ok()?;
        runtime.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection has ended");
            }
        });
        Some(Direct { requests, authority })
    }

    /// Asks, for as long as somebody waits. Whoever does not any more ends the request with the server, too.
    pub(super) async fn ask<Q, A>(&self, path: &'static str, question: &Q, token: Option<&Token>) -> Asked<A>
    where
        Q: Message,
        A: Message + Default,
    {
        let Ok(mut requests) = self.requests.clone().ready().await else { return Asked::NotSent };
        let Ok(request) = self.request(path, token) else { return Asked::NotSent };
        let Ok((answer, mut body)) = requests.send_request(request, false) else { return Asked::NotSent };
        // From here on it may be on its way.
        if let Err(error) = body.send_data(framed(question), true) {
            return Asked::Sent(Err(broke(error)));
        }
        Asked::Sent(answered(answer).await)
    }

    fn request(&self, path: &'static str, token: Option<&Token>) -> Result<Request<()>, tonic::codegen::http::Error> {
        let path = PathAndQuery::from_static(path);
        let uri = Uri::builder().scheme(Scheme::HTTP).authority(self.authority.clone()).path_and_query(path).build()?;
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("palisade/", env!("CARGO_PKG_VERSION"))));
        if let Some(token) = token.and_then(|token| HeaderValue::from_bytes(token.as_encoded_bytes()).ok()) {
            headers.insert("token", token);
        }
        Ok(request)
    }
}

/// The question as it goes.
fn framed(question: &impl Message) -> Bytes {
    let length = question.encoded_len();
    let mut bytes = Vec::with_capacity(PREFIX + length);
    bytes.push(0);
    bytes.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    question.encode_raw(&mut bytes);
    bytes.into()
}

async fn answered<A: Message + Default>(answer: ResponseFuture) -> Result<A, Status> {
    let (head, mut body) = answer.await.map_err(broke)?.into_parts();
    if head.status != StatusCode::OK {
        return Err(Status::unavailable(format!("HTTP status {}", head.status)));
    }
    // Mostly it comes in one piece.
    let (mut first, mut rest) = (Bytes::new(), Vec::new());
    while let Some(piece) = body.data().await {
        let piece = piece.map_err(broke)?;
        body.flow_control().release_capacity(piece.len()).map_err(broke)?;
        match (first.is_empty(), rest.is_empty()) {
            (true, _) => first = piece,
            (false, true) => rest = [&*first, &*piece].concat(),
            (false, false) => rest.extend_from_slice(&piece),
        }
        if first.len().max(rest.len()) > LONGEST_ANSWER {
            return Err(Status::out_of_range("the answer is longer than any that is taken"));
        }
    }
    let trailers = body.trailers().await.map_err(broke)?;
    // An answer that has no body has its status in the head.
    verdict(trailers.as_ref().unwrap_or(&head.headers))?;
    decoded(if rest.is_empty() { &first } else { &rest })
}

/// What the server says of the whole.
fn verdict(headers: &HeaderMap) -> Result<(), Status> {
    if headers.get("grpc-status").is_some_and(|status| status.as_bytes() == b"0") {
        return Ok(());
    }
    Err(Status::from_header_map(headers).unwrap_or_else(|| Status::unknown("the server has not said what became of the request")))
}

fn decoded<A: Message + Default>(bytes: &[u8]) -> Result<A, Status> {
    let wrong = |what: &str| Status::internal(format!("the server's answer {what}"));
    let Some((&[is_compressed, a, b, c, d], message)) = bytes.split_first_chunk::<PREFIX>() else {
        return Err(wrong("is cut short"));
    };
    if is_compressed != 0 {
        return Err(wrong("is compressed, which nobody asked for"));
    }
    if usize::try_from(u32::from_be_bytes([a, b, c, d])).ok() != Some(message.len()) {
        return Err(wrong("has another length than it says"));
    }
    A::decode(message).map_err(|error| wrong(&format!("cannot be read: {error}")))
}

/// The connection broke, or the server ended the request: nobody knows whether it was done.
fn broke(error: h2::Error) -> Status {
    Status::from_error(Box::new(error))
}

#[cfg(test)]
mod tests {
    use super::super::proto::{DeleteRangeRequest, TxnResponse};
    use super::*;

    #[test]
    fn a_question_has_its_length_before_it() {
        let question = DeleteRangeRequest { key: b"key".to_vec(), prev_kv: true };
        let framed = framed(&question);
        assert_eq!(framed[..PREFIX], [0, 0, 0, 0, 7]);
        assert_eq!(decoded::<DeleteRangeRequest>(&framed).unwrap(), question);
    }

    #[test]
    fn an_answer_that_is_not_whole_is_refused() {
        let whole = framed(&TxnResponse { succeeded: true, ..TxnResponse::default() });
        assert!(decoded::<TxnResponse>(&whole).is_ok());
        for (bytes, why) in [
            (&whole[..4], "cut short"),
            (&whole[..whole.len() - 1], "another length"),
            (&[&*whole, b"x"].concat(), "another length"),
            (&[&[1], &whole[1..]].concat(), "compressed"),
            (&[0, 0, 0, 0, 1, 0xff], "cannot be read"),
        ] {
            let status = decoded::<TxnResponse>(bytes).unwrap_err();
            assert!(status.message().contains(why), "{status}");
        }
    }

    #[test]
    fn what_the_server_says_counts() {
        let headers =
            |status: &'static str| HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static(status))]);
        assert!(verdict(&headers("0")).is_ok());
        assert_eq!(verdict(&headers("5")).unwrap_err().code(), tonic::Code::NotFound);
        assert_eq!(verdict(&HeaderMap::new()).unwrap_err().code(), tonic::Code::Unknown);
    }

    /// As whoever asks often has it: the same answers as by the channel, and what is wrong in the same words.
    #[tokio::test]
    async fn the_server_answers_and_refuses_as_it_does_by_the_channel() {
        use std::sync::Arc;

        use super::super::members::{Again, Members};
        use super::super::proto::TXN;
        use super::super::settings::Settings;
        use super::super::{proto::TxnRequest, txn};

        let server = tokio::task::spawn_blocking(palisade_testkit::etcd::Etcd::start).await.unwrap();
        let url: crate::url::StoreUrl = format!("etcd://{}/lock", server.address()).parse().unwrap();
        let members = Arc::new(Members::new(&Settings::read(&url).unwrap()).unwrap());
        let lane = members.lanes.clients().unwrap();
        let large = vec![b'v'; 1 << 20];
        let txn = |success: Vec<_>| TxnRequest { success, ..TxnRequest::default() };
        let reading = || async { members.ask::<_, TxnResponse>(TXN, txn(vec![txn::read(b"large")]), Again::Freely).await };
        members.ask::<_, TxnResponse>(TXN, txn(vec![txn::put(b"large", large.clone(), 0)]), Again::Freely).await.unwrap();
        let refused = || async {
            let asking = txn(vec![txn::put(b"key", b"value".to_vec(), 1234)]);
            members.ask::<_, TxnResponse>(TXN, asking, Again::Freely).await.err().unwrap()
        };
        assert!(lane.direct(0).is_none(), "who asks once has the channel alone");
        let by_channel = refused().await;
        while lane.direct(0).is_none() {
            reading().await.unwrap();
            tokio::task::yield_now().await;
        }
        // Longer than a window of the protocol's own, and more than the connection's in all.
        for _ in 0..12 {
            assert_eq!(txn::keys_of(reading().await.unwrap()).pop().unwrap().value, large);
        }
        let by_itself = refused().await;
        assert!(by_itself.lease_gone && by_itself.refused);
        assert_eq!(by_itself.error.to_string(), by_channel.error.to_string());
        assert!(lane.direct(0).is_some(), "all that went by it");
        // One that hangs or has broken is left alone, and another takes its place in time.
        let first = lane.direct(0).unwrap();
        lane.give_up(0, Some(&first));
        assert!(lane.direct(0).is_none());
        while lane.direct(0).is_none() {
            reading().await.unwrap();
            tokio::task::yield_now().await;
        }
        let second = lane.direct(0).unwrap();
        lane.give_up(0, Some(&first));
        assert!(Arc::ptr_eq(&second, &lane.direct(0).unwrap()), "only the one that was meant");
        tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
        let asking = txn(vec![txn::read(b"large")]);
        while !matches!(second.ask::<_, TxnResponse>(TXN, &asking, None).await, Asked::NotSent) {
            tokio::task::yield_now().await;
        }
    }
}
