//! Connections on which a request is one packet.
//!
//! HTTP/2 sends the headers of a request, and then what it asks; both are ready at nearly the same moment, but each is flushed by
//! itself. That is one system call too many, and the server is woken twice. So what is flushed waits until every task that is
//! ready has run once: no timer, and no delay that anybody could measure.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

/// More than this is written as it is.
const MUCH: usize = 16 << 10;

/// Makes such connections.
#[derive(Clone)]
pub(super) struct Connector(HttpConnector);

impl Connector {
    pub(super) fn new(keep_alive: Duration, connect_timeout: Duration) -> Connector {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        // Nothing here waits for the other side's acknowledgement.
        http.set_nodelay(true);
        http.set_keepalive(Some(keep_alive));
        http.set_connect_timeout(Some(connect_timeout));
        Connector(http)
    }

    /// A connection that writes what it is given, at once.
    pub(super) async fn plain(mut self, uri: Uri) -> Result<TcpStream, <HttpConnector as Service<Uri>>::Error> {
        poll_fn(|context| self.0.poll_ready(context)).await?;
        Ok(self.0.call(uri).await?.into_inner())
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Packed<TcpStream>>;
    type Error = <HttpConnector as Service<Uri>>::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.0.call(uri);
        Box::pin(async move { Ok(TokioIo::new(Packed::new(connecting.await?.into_inner()))) })
    }
}

/// A connection whose small writes wait for each other.
pub(super) struct Packed<T> {
    inner: T,
    /// What is to be written.
    held: Vec<u8>,
    /// Whether all who were ready have had their turn since the flush.
    has_waited: bool,
}

impl<T: AsyncWrite + Unpin> Packed<T> {
    fn new(inner: T) -> Packed<T> {
        Packed { inner, held: Vec::new(), has_waited: false }
    }

    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut sent = 0;
        let outcome = loop {
            let Some(rest) = self.held.get(sent..).filter(|rest| !rest.is_empty()) else { break Poll::Ready(Ok(())) };
            match Pin::new(&mut self.inner).poll_write(context, rest) {
                Poll::Ready(Ok(0)) => break Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => sent += count,
                Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
                Poll::Pending => break Poll::Pending,
            }
        };
        self.held.drain(..sent);
        self.held.shrink_to(MUCH);
        outcome
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Packed<T> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(context, into)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Packed<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(self: Pin<&mut Self>, context: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let size: usize = parts.iter().map(|part| part.len()).sum();
        if this.held.len() + size > MUCH {
            ready!(this.poll_send(context))?;
        }
        if size > MUCH {
            return Pin::new(&mut this.inner).poll_write_vectored(context, parts);
        }
        parts.iter().for_each(|part| this.held.extend_from_slice(part));
        Poll::Ready(Ok(size))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.held.is_empty() {
            return Pin::new(&mut this.inner).poll_flush(context);
        }
        if !std::mem::replace(&mut this.has_waited, true) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(this.poll_send(context))?;
        this.has_waited = false;
        Pin::new(&mut this.inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(context))?;
        Pin::new(&mut this.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn read(other: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
        let mut bytes = vec![0; 100];
        let count = other.read(&mut bytes).await.unwrap();
        bytes.truncate(count);
        bytes
    }

    #[tokio::test]
    async fn what_comes_while_a_flush_waits_goes_with_it() {
        let (inner, mut other) = tokio::io::duplex(100);
        let mut packed = Packed::new(inner);
        packed.write_all(b"head ").await.unwrap();
        let first = poll_fn(|context| Poll::Ready(Pin::new(&mut packed).poll_flush(context).is_pending())).await;
        assert!(first, "others have their turn first");
        packed.write_all(b"body").await.unwrap();
        packed.flush().await.unwrap();
        assert_eq!(read(&mut other).await, b"head body");
        packed.write_all(b"alone").await.unwrap();
        packed.flush().await.unwrap();
        assert_eq!(read(&mut other).await, b"alone");
    }

    #[tokio::test]
    async fn nothing_is_lost_when_it_is_much_or_the_other_side_is_slow() {
        let (inner, mut other) = tokio::io::duplex(1000);
        let mut packed = Packed::new(inner);
        let bytes: Vec<u8> = (0..5 * MUCH).map(|at| (at % 251) as u8).collect();
        let (all, sizes) = (bytes.clone(), [1, MUCH - 1, 2, MUCH + 1, 7, 3000]);
        let writer = tokio::spawn(async move {
            let mut rest = all.as_slice();
            for size in sizes.into_iter().cycle() {
                let (now, later) = rest.split_at(size.min(rest.len()));
                packed.write_all(now).await.unwrap();
                packed.flush().await.unwrap();
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
            packed.write_all(b"end").await.unwrap();
            packed.shutdown().await.unwrap();
        });
        let mut heard = Vec::new();
        other.read_to_end(&mut heard).await.unwrap();
        writer.await.unwrap();
        assert!(heard == [bytes.as_slice(), b"end"].concat(), "{} bytes of {}", heard.len(), bytes.len() + 3);
    }
}
