//! The login: one token for all requests, obtained again when the server refuses it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tonic::metadata::{Ascii, MetadataValue};

use super::cluster::Cluster;
use super::failure::{Remedy, denied, remedy};
use super::proto::{AUTHENTICATE, AuthenticateRequest, AuthenticateResponse};
use crate::error::{Error, Result};
use crate::stores::in_task::in_task;
use crate::url::Secret;

pub(super) type Token = MetadataValue<Ascii>;

pub(super) struct Login {
    user: Secret,
    password: Secret,
    token: Mutex<Option<Token>>,
    /// Held by the one task that logs in.
    logging_in: tokio::sync::Mutex<()>,
}

impl Login {
    pub(super) fn new((user, password): (Secret, Secret)) -> Login {
        Login {
            user,
            password,
            token: Mutex::new(None),
            logging_in: tokio::sync::Mutex::new(()),
        }
    }

    fn token(&self) -> MutexGuard<'_, Option<Token>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cluster {
    /// Whether the URL has a user and a password.
    pub(super) fn logs_in(&self) -> bool {
        self.login.is_some()
    }

    /// The token of our login; none without a login.
    pub(super) async fn token(self: &Arc<Self>) -> Result<Option<Token>> {
        let Some(login) = &self.login else {
            return Ok(None);
        };
        let known = login.token().clone();
        if known.is_some() {
            return Ok(known);
        }
        // Boxed, because it is rare, and the future of every request has room for it.
        Box::pin(in_task(Arc::clone(self).log_in())).await
    }

    async fn log_in(self: Arc<Self>) -> Result<Option<Token>> {
        let Some(login) = &self.login else {
            return Ok(None);
        };
        let _one_at_a_time = login.logging_in.lock().await;
        let known = login.token().clone();
        if known.is_some() {
            return Ok(known);
        }
        let mut member = self.current();
        match tokio::time::timeout(self.request_timeout, self.authenticate(login, &mut member))
            .await
        {
            Ok(token) => token,
            Err(_) => Err(self.silent(member)),
        }
    }

    async fn authenticate(&self, login: &Login, member: &mut usize) -> Result<Option<Token>> {
        let mut attempt = 1;
        loop {
            *member = self.current();
            let host = self.host(*member)?;
            let request = AuthenticateRequest {
                name: login.user.reveal().to_owned(),
                password: login.password.reveal().to_owned(),
            };
            match self
                .send::<_, AuthenticateResponse>(*member, AUTHENTICATE, request, None)
                .await?
            {
                Ok(response) => {
                    let token: Token = response
                        .token
                        .parse()
                        .map_err(|_| Error::protocol("the server's token cannot be sent back"))?;
                    *login.token() = Some(token.clone());
                    return Ok(Some(token));
                }
                // Without authentication the server ignores tokens, too.
                Err(status) if status.message().contains("authentication is not enabled") => {
                    return Ok(None);
                }
                Err(status) => match remedy(&status, host) {
                    Remedy::AskAnother(_) | Remedy::Unsure(_) if attempt < self.attempts() => {
                        self.turn_from(*member)
                    }
                    Remedy::LogIn(_) => {
                        return Err(denied(host, "refused the user or the password"));
                    }
                    other => return Err(other.into_error()),
                },
            }
            attempt += 1;
        }
    }

    /// Forgets a token that was refused, unless there is a newer one.
    pub(super) fn forget_token(&self, refused: Option<&Token>) {
        let Some(login) = &self.login else { return };
        let mut token = login.token();
        if refused.is_none() || token.as_ref() == refused {
            *token = None;
        }
    }
}
