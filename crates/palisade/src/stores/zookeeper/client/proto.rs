//! The messages: the dozen requests that are needed, on servers from 3.5 on, and their answers.

use super::jute::{Broken, In, Out};
use super::session::Credentials;

/// The numbers of requests.
mod op {
    pub(super) const CREATE: i32 = 1;
    pub(super) const DELETE: i32 = 2;
    pub(super) const EXISTS: i32 = 3;
    pub(super) const GET_DATA: i32 = 4;
    pub(super) const SET_DATA: i32 = 5;
    pub(super) const GET_CHILDREN: i32 = 8;
    pub(super) const SYNC: i32 = 9;
    pub(super) const GET_CHILDREN2: i32 = 12;
    pub(super) const CHECK: i32 = 13;
    pub(super) const MULTI: i32 = 14;
    pub(super) const CREATE2: i32 = 15;
    pub(super) const CREATE_CONTAINER: i32 = 19;
    pub(super) const CLOSE: i32 = -11;
    pub(super) const AUTH: i32 = 100;
    #[cfg(feature = "zookeeper-sasl")]
    pub(super) const SASL: i32 = 102;
}

/// Messages that are no answer to a numbered request.
pub(super) const XID_EVENT: i32 = -1;
pub(super) const XID_AUTH: i32 = -4;

/// Which version of a node a write is for: any.
pub(crate) const ANY: i32 = -1;

/// The error by which a server refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    NoNode,
    NoAuth,
    BadVersion,
    NoChildrenForEphemerals,
    NodeExists,
    NotEmpty,
    SessionExpired,
    InvalidAcl,
    AuthFailed,
    SessionMoved,
    NotReadOnly,
    Unimplemented,
    /// The server answers only clients that have logged in as it demands.
    LoginRequired,
    /// One part of a multi failed, and this was another.
    RolledBack,
    Other(i32),
}

impl Code {
    pub(crate) fn of(number: i32) -> Code {
        match number {
            -2 => Code::RolledBack,
            -6 => Code::Unimplemented,
            -101 => Code::NoNode,
            -102 => Code::NoAuth,
            -103 => Code::BadVersion,
            -108 => Code::NoChildrenForEphemerals,
            -110 => Code::NodeExists,
            -111 => Code::NotEmpty,
            -112 => Code::SessionExpired,
            -114 => Code::InvalidAcl,
            -115 => Code::AuthFailed,
            -118 => Code::SessionMoved,
            -119 => Code::NotReadOnly,
            -124 => Code::LoginRequired,
            other => Code::Other(other),
        }
    }
}

/// How a node is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Make {
    Persistent = 0,
    Ephemeral = 1,
    EphemeralSequential = 3,
    Container = 4,
}

/// The rights on a node that we make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acl {
    /// All rights for all clients.
    Open,
    /// All rights, for the login that made it only.
    Creator,
}

/// A request, and how its answer is read.
pub(crate) struct Request<T> {
    pub(super) frame: Frame,
    pub(super) read: fn(&[u8]) -> Result<T, Broken>,
}

/// The bytes of a request, without the number that it gets when it is sent.
pub(super) struct Frame {
    pub(super) op: i32,
    body: Vec<u8>,
    /// Whether it is a transaction: its answer proves that the leader had our session, and a
    /// majority that leader.
    pub(super) by_leader: bool,
}

/// A good answer.
pub(super) struct Reply {
    /// The newest transaction that the server had done: its own, for a request that is one.
    pub(super) zxid: i64,
    pub(super) body: Vec<u8>,
}

impl<T> Request<T> {
    fn new(op: i32, body: Out, read: fn(&[u8]) -> Result<T, Broken>) -> Request<T> {
        Request {
            frame: Frame {
                op,
                body: body.written(),
                by_leader: false,
            },
            read,
        }
    }

    fn transaction(op: i32, body: Out, read: fn(&[u8]) -> Result<T, Broken>) -> Request<T> {
        Request {
            frame: Frame {
                op,
                body: body.written(),
                by_leader: true,
            },
            read,
        }
    }

    /// Sets a watch as well, of a read that can: whether it does is the last byte of these.
    pub(crate) fn watched(mut self) -> Request<T> {
        if let Some(watch) = self.frame.body.last_mut() {
            *watch = 1;
        }
        self
    }

    /// How many bytes it has, without its header.
    pub(crate) fn len(&self) -> usize {
        self.frame.body.len()
    }
}

impl Request<Created> {
    pub(crate) fn create(path: &str, data: &[u8], acl: Acl, make: Make) -> Request<Created> {
        let body = creating(
            Out::part_of(path.len() + data.len() + 64),
            path,
            data,
            acl,
            make,
        );
        Request::transaction(op::CREATE2, body, Created::read)
    }
}

impl Request<()> {
    /// Makes a container: a persistent node that the servers delete some time after its last child.
    pub(crate) fn container(path: &str, acl: Acl) -> Request<()> {
        Request::transaction(
            op::CREATE_CONTAINER,
            creating(Out::part(), path, b"", acl, Make::Container),
            nothing,
        )
    }

    pub(crate) fn delete(path: &str) -> Request<()> {
        Request::transaction(
            op::DELETE,
            Out::part_of(path.len() + 8).text(path).i32(ANY),
            nothing,
        )
    }

    /// Comes back from the leader, behind everything that it has committed until then. It proves
    /// nothing about our session: the leader asks no other server, and may have been replaced
    /// without knowing it yet.
    pub(crate) fn sync(path: &str) -> Request<()> {
        Request::new(op::SYNC, Out::part().text(path), nothing)
    }

    pub(crate) fn close() -> Request<()> {
        Request {
            frame: Frame::close(),
            read: nothing,
        }
    }
}

impl Request<Stat> {
    pub(crate) fn exists(path: &str) -> Request<Stat> {
        Request::new(op::EXISTS, Out::part().text(path).bool(false), stat)
    }
}

impl Request<(Vec<u8>, Stat)> {
    pub(crate) fn get_data(path: &str) -> Request<(Vec<u8>, Stat)> {
        Request::new(op::GET_DATA, Out::part().text(path).bool(false), data)
    }
}

impl Request<Vec<String>> {
    pub(crate) fn children(path: &str) -> Request<Vec<String>> {
        Request::new(
            op::GET_CHILDREN,
            Out::part().text(path).bool(false),
            children,
        )
    }
}

impl Request<(Vec<String>, Stat)> {
    /// The children of a node, and what is known of the node itself.
    pub(crate) fn children_and_stat(path: &str) -> Request<(Vec<String>, Stat)> {
        Request::new(
            op::GET_CHILDREN2,
            Out::part().text(path).bool(false),
            children_and_stat,
        )
    }
}

impl Request<Multi> {
    pub(crate) fn multi(steps: &[Step<'_>]) -> Request<Multi> {
        let body = steps
            .iter()
            .fold(Out::part(), |body, step| step.written(body));
        Request::transaction(op::MULTI, body.i32(-1).bool(true).i32(-1), multi)
    }

    /// A transaction that changes nothing. Whether the node is there does not matter.
    pub(crate) fn heartbeat(node: &str) -> Request<Multi> {
        Request::multi(&[Step::Check {
            path: node,
            version: ANY,
        }])
    }
}

impl Frame {
    pub(super) fn close() -> Frame {
        Frame {
            op: op::CLOSE,
            body: Vec::new(),
            by_leader: true,
        }
    }

    /// Writes it as it goes out.
    pub(super) fn write(&self, xid: i32, out: &mut Vec<u8>) {
        let length = u32::try_from(8 + self.body.len()).unwrap_or(u32::MAX);
        out.reserve(12 + self.body.len());
        out.extend(length.to_be_bytes());
        out.extend(xid.to_be_bytes());
        out.extend(self.op.to_be_bytes());
        out.extend(&self.body);
    }
}

fn creating(out: Out, path: &str, data: &[u8], acl: Acl, make: Make) -> Out {
    let (scheme, id) = match acl {
        Acl::Open => ("world", "anyone"),
        Acl::Creator => ("auth", ""),
    };
    // One entry: all rights.
    out.text(path)
        .bytes(data)
        .i32(1)
        .i32(31)
        .text(scheme)
        .text(id)
        .i32(make as i32)
}

/// The login of a connection. It is sent before anything else is asked.
pub(super) fn login(user: &str, password: &str) -> Vec<u8> {
    Out::bare()
        .i32(XID_AUTH)
        .i32(op::AUTH)
        .i32(0)
        .text("digest")
        .text(&format!("{user}:{password}"))
        .framed()
}

/// One message of a SASL login. It has a number, though nothing else is asked meanwhile.
#[cfg(feature = "zookeeper-sasl")]
pub(super) fn sasl(xid: i32, token: &[u8]) -> Vec<u8> {
    Out::bare().i32(xid).i32(op::SASL).bytes(token).framed()
}

/// The server's part of it; empty when it has nothing to say.
#[cfg(feature = "zookeeper-sasl")]
pub(super) fn sasl_token(body: &[u8]) -> Result<Vec<u8>, Broken> {
    In(body).bytes().map(<[u8]>::to_vec)
}

/// One step of a multi: all are done, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step<'a> {
    Create {
        path: &'a str,
        data: &'a [u8],
        acl: Acl,
        make: Make,
    },
    Delete {
        path: &'a str,
        version: i32,
    },
    SetData {
        path: &'a str,
        data: &'a [u8],
        version: i32,
    },
    /// That the node is there, with this version.
    Check {
        path: &'a str,
        version: i32,
    },
}

impl Step<'_> {
    fn written(&self, out: Out) -> Out {
        let head = |op: i32| out.i32(op).bool(false).i32(-1);
        match *self {
            // Not CREATE2: within a multi the answer has only the path in any case.
            Step::Create {
                path,
                data,
                acl,
                make,
            } => creating(head(op::CREATE), path, data, acl, make),
            Step::Delete { path, version } => head(op::DELETE).text(path).i32(version),
            Step::SetData {
                path,
                data,
                version,
            } => head(op::SET_DATA).text(path).bytes(data).i32(version),
            Step::Check { path, version } => head(op::CHECK).text(path).i32(version),
        }
    }
}

/// What became of a multi: what each step did, or why none was done.
pub(crate) type Multi = Result<Vec<Outcome>, Undone>;

/// Why nothing of a multi was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Undone {
    /// The error of the step that failed.
    pub(crate) code: Code,
    /// Which step that was, counted from 0, if the server says so.
    pub(crate) step: Option<usize>,
}

/// What became of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Created(String),
    Changed(Stat),
    Nothing,
}

fn multi(body: &[u8]) -> Result<Multi, Broken> {
    let mut read = In(body);
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    loop {
        let (kind, is_end, _) = (read.i32()?, read.bool()?, read.i32()?);
        if is_end {
            break;
        }
        match kind {
            op::CREATE => done.push(Outcome::Created(read.text()?)),
            op::SET_DATA => done.push(Outcome::Changed(Stat::read(&mut read)?)),
            op::DELETE | op::CHECK => done.push(Outcome::Nothing),
            -1 => failed.push(Code::of(read.i32()?)),
            _ => return Err(Broken),
        }
    }
    if failed.is_empty() {
        return Ok(Ok(done));
    }
    // The steps before the one that failed have the error 0, and those behind it are rolled back.
    let step = failed
        .iter()
        .position(|code| !matches!(code, Code::Other(0) | Code::RolledBack));
    let code = step
        .and_then(|step| failed.get(step))
        .copied()
        .unwrap_or(Code::RolledBack);
    Ok(Err(Undone { code, step }))
}

/// Whether the answer to a request says that the session has ended. A multi says so of its steps
/// only.
pub(super) fn is_of_ended_session(op: i32, header: &Header, body: &[u8]) -> bool {
    // If one step has failed, the first says so, too.
    let has_failed = body.starts_with(&(-1_i32).to_be_bytes());
    let in_a_step = || {
        has_failed
            && matches!(
                multi(body),
                Ok(Err(Undone {
                    code: Code::SessionExpired,
                    ..
                }))
            )
    };
    Code::of(header.error) == Code::SessionExpired
        || op == op::MULTI && header.error == 0 && in_a_step()
}

/// The metadata of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stat {
    /// The transaction that made it.
    pub(crate) czxid: i64,
    /// The transaction that changed it last.
    pub(crate) mzxid: i64,
    pub(crate) version: i32,
    /// The session that it hangs on; 0 for none.
    pub(crate) owner: i64,
    /// The transaction that last added a child, or took one away.
    pub(crate) pzxid: i64,
}

impl Stat {
    fn read(read: &mut In<'_>) -> Result<Stat, Broken> {
        let czxid = read.i64()?;
        let mzxid = read.i64()?;
        let [_ctime, _mtime] = [read.i64()?, read.i64()?];
        let version = read.i32()?;
        let [_cversion, _aversion] = [read.i32()?, read.i32()?];
        let owner = read.i64()?;
        let _length = read.i32()?;
        let _children = read.i32()?;
        let pzxid = read.i64()?;
        Ok(Stat {
            czxid,
            mzxid,
            version,
            owner,
            pzxid,
        })
    }
}

/// A node that was made.
pub(crate) struct Created {
    pub(crate) path: String,
    /// The transaction that made it.
    pub(crate) czxid: i64,
}

impl Created {
    fn read(body: &[u8]) -> Result<Created, Broken> {
        let mut read = In(body);
        Ok(Created {
            path: read.text()?,
            czxid: Stat::read(&mut read)?.czxid,
        })
    }
}

fn nothing(_: &[u8]) -> Result<(), Broken> {
    Ok(())
}

fn stat(body: &[u8]) -> Result<Stat, Broken> {
    Stat::read(&mut In(body))
}

fn data(body: &[u8]) -> Result<(Vec<u8>, Stat), Broken> {
    let mut read = In(body);
    Ok((read.bytes()?.to_vec(), Stat::read(&mut read)?))
}

fn children(body: &[u8]) -> Result<Vec<String>, Broken> {
    In(body).texts()
}

fn children_and_stat(body: &[u8]) -> Result<(Vec<String>, Stat), Broken> {
    let mut read = In(body);
    Ok((read.texts()?, Stat::read(&mut read)?))
}

/// The first message of a connection: for a new session with the number 0, for an old one with its
/// number and password.
pub(super) fn connect(
    seen: i64,
    timeout_ms: i32,
    Credentials { id, password }: &Credentials,
) -> Vec<u8> {
    Out::bare()
        .i32(0)
        .i64(seen)
        .i32(timeout_ms)
        .i64(*id)
        .bytes(password)
        .bool(false)
        .framed()
}

/// The server's first answer. A session of the number 0 has ended.
pub(super) struct Connected {
    pub(super) timeout_ms: i32,
    pub(super) credentials: Credentials,
}

pub(super) fn connected(body: &[u8]) -> Result<Connected, Broken> {
    let mut read = In(body);
    let _version = read.i32()?;
    let (timeout_ms, id) = (read.i32()?, read.i64()?);
    Ok(Connected {
        timeout_ms,
        credentials: Credentials {
            id,
            password: read.bytes()?.to_vec(),
        },
    })
}

/// What stands before every other answer.
pub(super) struct Header {
    pub(super) xid: i32,
    pub(super) zxid: i64,
    pub(super) error: i32,
}

pub(super) fn header(body: &[u8]) -> Result<(Header, &[u8]), Broken> {
    let mut read = In(body);
    Ok((
        Header {
            xid: read.i32()?,
            zxid: read.i64()?,
            error: read.i32()?,
        },
        read.0,
    ))
}

/// The path of a watch that has fired.
pub(super) fn event_path(body: &[u8]) -> Result<String, Broken> {
    let mut read = In(body);
    let _kind_and_state = (read.i32()?, read.i32()?);
    read.text()
}
