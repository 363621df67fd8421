//! The programs whose lock is a line of keys in etcd, in the order of their create revisions:
//! etcd's own Go client, its tool `etcdctl lock`, and ours.

mod elector;
mod etcdctl;
mod library;

pub use elector::Elector;
pub use etcdctl::{Etcdctl, Way};
pub use library::Library;
