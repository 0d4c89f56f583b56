//! Whom TLS trusts: Mozilla's roots, compiled in, with the user's own certificates.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use super::failure::SetupError;

/// Certificates in PEM form, as read from a file.
#[derive(Debug, Clone)]
pub struct Pem {
    /// Where they come from, for messages.
    pub origin: String,
    /// What was read.
    pub bytes: Vec<u8>,
}

/// The configuration of all connections. The bundled roots make TLS work in an empty root; `more` comes on top.
pub(super) fn config(more: &[Pem]) -> Result<ClientConfig, SetupError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().cloned());
    for pem in more {
        add(&mut roots, pem)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|source| SetupError::Tls { source })?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// All certificates that are trusted, in PEM form: for programs that speak TLS themselves.
#[must_use]
pub fn pem_bundle(more: &[Pem]) -> Vec<u8> {
    let mut bundle = Vec::new();
    for certificate in webpki_root_certs::TLS_SERVER_ROOT_CERTS {
        bundle.extend_from_slice(b"-----BEGIN CERTIFICATE-----\n");
        for line in STANDARD.encode(certificate).as_bytes().chunks(64) {
            bundle.extend_from_slice(line);
            bundle.push(b'\n');
        }
        bundle.extend_from_slice(b"-----END CERTIFICATE-----\n");
    }
    for pem in more {
        bundle.extend_from_slice(&pem.bytes);
        bundle.push(b'\n');
    }
    bundle
}

/// System stores hold a few certificates that no library takes: those are passed over, unless nothing else is there.
fn add(roots: &mut RootCertStore, pem: &Pem) -> Result<(), SetupError> {
    let unusable = |reason: String| SetupError::Certificates { origin: pem.origin.clone(), reason };
    let mut certificates = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(&pem.bytes) {
        certificates.push(certificate.map_err(|error| unusable(error.to_string()))?);
    }
    if certificates.is_empty() {
        return Err(unusable("there is no PEM certificate in it".to_owned()));
    }
    match roots.add_parsable_certificates(certificates) {
        (0, _) => Err(unusable("no certificate in it can be used".to_owned())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_is_an_error_that_names_it() {
        let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for bytes in [&b""[..], b"nothing here", broken] {
            let pem = Pem { origin: "/ca.pem".to_owned(), bytes: bytes.to_vec() };
            assert!(config(&[pem]).unwrap_err().to_string().contains("/ca.pem"));
        }
        assert!(config(&[]).is_ok());
    }

    #[test]
    fn the_bundle_for_other_programs_has_all_roots_and_what_is_added() {
        let more = Pem { origin: String::new(), bytes: b"-----BEGIN more".to_vec() };
        let bundle = pem_bundle(&[more]);
        let parsed = CertificateDer::pem_slice_iter(&bundle).filter_map(Result::ok).count();
        assert_eq!(parsed, webpki_root_certs::TLS_SERVER_ROOT_CERTS.len());
        assert!(bundle.ends_with(b"-----BEGIN more\n"));
    }
}
