//! Certificates for `localhost` and `127.0.0.1`, made once per process.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::{fs, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::dir;

/// Files in PEM form: an authority, and a server and a client that it vouches for.
#[derive(Debug)]
pub struct Certs {
    /// The authority's certificate.
    pub ca: PathBuf,
    /// The server's certificate, for `localhost` and `127.0.0.1`.
    pub server: PathBuf,
    /// The server's key.
    pub server_key: PathBuf,
    /// The client's certificate; its common name is `client`.
    pub client: PathBuf,
    /// The client's key.
    pub client_key: PathBuf,
}

/// The certificates of this process.
pub fn certs() -> &'static Certs {
    static CERTS: OnceLock<Certs> = OnceLock::new();
    CERTS.get_or_init(|| make().expect("certificates with fixed parameters"))
}

fn make() -> Result<Certs, Box<dyn std::error::Error>> {
    let folder = dir::base().join("certs");
    // May be there already, if a panic came between.
    fs::create_dir_all(&folder)?;
    let (authority, ca) = authority()?;
    let ca = write(&folder, "ca.crt", &ca)?;
    let (server, server_key) = signed("server", &authority)?;
    let (client, client_key) = signed("client", &authority)?;
    Ok(Certs {
        ca,
        server: write(&folder, "server.crt", &server)?,
        server_key: write(&folder, "server.key", &server_key)?,
        client: write(&folder, "client.crt", &client)?,
        client_key: write(&folder, "client.key", &client_key)?,
    })
}

fn authority() -> Result<(Issuer<'static, KeyPair>, String), rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = named("testkit-ca", &[])?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key)?.pem();
    Ok((Issuer::new(params, key), certificate))
}

fn signed(
    name: &str,
    authority: &Issuer<'static, KeyPair>,
) -> Result<(String, String), rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = named(name, &["localhost", "127.0.0.1"])?;
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.use_authority_key_identifier_extension = true;
    Ok((
        params.signed_by(&key, authority)?.pem(),
        key.serialize_pem(),
    ))
}

fn named(name: &str, hosts: &[&str]) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(
        hosts
            .iter()
            .map(|host| (*host).to_owned())
            .collect::<Vec<_>>(),
    )?;
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

fn write(folder: &Path, name: &str, text: &str) -> std::io::Result<PathBuf> {
    let path = folder.join(name);
    fs::write(&path, text)?;
    Ok(path)
}
