use std::path::PathBuf;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use axum::http::{HeaderMap, HeaderValue, header};
use jsonwebtoken::{EncodingKey, Header, encode};
use kvasir_api::Role;
use serde_json::{Value, json};

use super::{AuthFailure, Authenticator, NewToken, Principal, tenants::Tenants};
use crate::config::{AuthConfig, Config, JwtConfig};

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).expect("writes");
        path
    }
}

fn authenticator(tenants: Option<PathBuf>, jwks: Option<PathBuf>) -> Result<Authenticator, String> {
    let jwt = jwks.map(|jwks_file| JwtConfig {
        jwks_file,
        issuer: "https://issuer/".to_owned(),
        audience: "kvasir".to_owned(),
        tenant_claim: "tenant".to_owned(),
        role_claim: "role".to_owned(),
    });
    let auth = AuthConfig { tenants_file: tenants, jwt, failures_per_minute: 3 };
    Authenticator::open(&Config { auth, ..Config::default() })
}

fn ask(authenticator: &Authenticator, credential: &str) -> Result<(String, Role), AuthFailure> {
    let mut headers = HeaderMap::new();
    let value = HeaderValue::try_from(format!("Bearer {credential}")).expect("a value");
    headers.insert(header::AUTHORIZATION, value);
    let principal = authenticator.authenticate(&headers, None)?;
    Ok((principal.tenant.to_string(), principal.role))
}

fn principal(tenant: &str) -> Principal {
    Principal { tenant: tenant.parse().expect("a name"), role: Role::Read, credential: "jwt".into() }
}

fn token(tenant: &str, role: Role) -> NewToken {
    NewToken::generate("test", &tenant.parse().expect("a name"), role)
}

#[test]
fn a_token_gives_its_tenant_and_role_until_it_is_taken_out_of_the_file() {
    let files = Files::new();
    let (a, b) = (token("team-a", Role::Read), token("team-b", Role::Admin));
    let path = files.write("tenants.toml", &format!("{}{}", a.entry, b.entry));
    let authenticator = authenticator(Some(path), None).expect("opens");
    assert_eq!(ask(&authenticator, &a.token), Ok(("team-a".to_owned(), Role::Read)));
    assert_eq!(ask(&authenticator, &b.token), Ok(("team-b".to_owned(), Role::Admin)));
    assert_eq!(ask(&authenticator, "kv_guess"), Err(AuthFailure::Invalid));
    assert_eq!(authenticator.authenticate(&HeaderMap::new(), None), Err(AuthFailure::Missing));
    files.write("tenants.toml", &a.entry);
    authenticator.reload();
    assert_eq!(ask(&authenticator, &b.token), Err(AuthFailure::Invalid));
    files.write("tenants.toml", "[[token]]\nname = 1");
    authenticator.reload();
    assert_eq!(
        ask(&authenticator, &a.token),
        Ok(("team-a".to_owned(), Role::Read)),
        "the last good file stays"
    );
}

#[test]
fn an_expired_token_is_refused() {
    let files = Files::new();
    let (old, new) = (token("a", Role::Read), token("a", Role::Read));
    let text = format!(
        "{}expires = \"2020-01-01T00:00:00Z\"\n{}expires = 2999-01-01T00:00:00Z\n",
        old.entry, new.entry
    );
    let authenticator = authenticator(Some(files.write("t", &text)), None).expect("opens");
    assert_eq!(ask(&authenticator, &old.token), Err(AuthFailure::Invalid));
    assert!(ask(&authenticator, &new.token).is_ok());
}

#[test]
fn bad_files_are_refused_at_start_with_what_is_wrong() {
    let files = Files::new();
    let twice = token("a", Role::Read).entry.repeat(2);
    let cases = [
        ("[[token]]\nname=\"x\"\ntenant=\"a\"\nrole=\"root\"\nsha256=\"\"", "role"),
        ("[[token]]\nname=\"x\"\ntenant=\"a/b\"\nrole=\"read\"\nsha256=\"\"", "name"),
        ("[[token]]\nname=\"x\"\ntenant=\"a\"\nrole=\"read\"\nsha256=\"abc\"", "64 hex digits"),
        ("[tenant.a]\nbytes = 3", "bytes"),
        (&twice, "twice"),
    ];
    for (text, expected) in cases {
        let error = authenticator(Some(files.write("t", text)), None).expect_err(text);
        assert!(error.contains("auth.tenants_file") && error.contains(expected), "{error}");
    }
    let unclosed = "[[access_key]]\nname = \"x\"\nsecret = \"canary-5b1f\n";
    let error = authenticator(Some(files.write("t", unclosed)), None).expect_err("no TOML");
    assert!(!error.contains("canary"), "{error}");
    let secret = r#"{"keys":[{"kty":"oct","kid":"k","alg":"HS256","k":"c2VjcmV0"}]}"#;
    let error = authenticator(None, Some(files.write("j", secret))).expect_err("a shared secret");
    assert!(error.contains("auth.jwks_file") && error.contains("EdDSA"), "{error}");
}

/// A key pair and the JWKS with its public half.
fn signer(kid: &str) -> (EncodingKey, Value) {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&aws_lc_rs::rand::SystemRandom::new()).expect("a key");
    let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).expect("parses");
    let x = base64url(pair.public_key().as_ref());
    let jwk = json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": kid, "x": x});
    (EncodingKey::from_ed_der(pkcs8.as_ref()), jwk)
}

fn base64url(bytes: &[u8]) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    let six = bits.as_bytes().chunks(6).map(|six| {
        let text = format!("{:0<6}", std::str::from_utf8(six).expect("digits"));
        LETTERS[usize::from_str_radix(&text, 2).expect("binary")] as char
    });
    six.collect()
}

fn signed(key: &EncodingKey, kid: &str, claims: &Value) -> String {
    let mut header = Header::new(jsonwebtoken::Algorithm::EdDSA);
    header.kid = Some(kid.to_owned());
    encode(&header, claims, key).expect("signs")
}

#[test]
fn a_web_token_needs_key_issuer_audience_time_tenant_and_role() {
    let files = Files::new();
    let ((key, jwk), (other_key, _)) = (signer("k1"), signer("k1"));
    let jwks = files.write("jwks.json", &json!({ "keys": [jwk] }).to_string());
    let authenticator = authenticator(None, Some(jwks)).expect("opens");
    let good = json!({"iss": "https://issuer/", "aud": "kvasir", "exp": 4_000_000_000_u64, "sub": "me",
        "tenant": "team-a", "role": "write"});
    assert_eq!(ask(&authenticator, &signed(&key, "k1", &good)), Ok(("team-a".to_owned(), Role::Write)));
    assert_eq!(
        ask(&authenticator, &signed(&other_key, "k1", &good)),
        Err(AuthFailure::Invalid),
        "another key"
    );
    assert_eq!(
        ask(&authenticator, &signed(&key, "k2", &good)),
        Err(AuthFailure::Invalid),
        "an unknown key id"
    );
    let bad = [
        ("iss", json!("https://elsewhere/")),
        ("aud", json!("another service")),
        ("exp", json!(1_000_000_000)),
        ("nbf", json!(3_900_000_000_u64)),
        ("tenant", json!("a/../b")),
        ("tenant", json!(null)),
        ("role", json!("root")),
    ];
    for (claim, value) in bad {
        let mut claims = good.clone();
        claims[claim] = value;
        assert_eq!(ask(&authenticator, &signed(&key, "k1", &claims)), Err(AuthFailure::Invalid), "{claim}");
    }
    for claim in ["iss", "aud", "exp", "tenant", "role"] {
        let mut claims = good.clone();
        claims.as_object_mut().expect("an object").remove(claim);
        assert_eq!(
            ask(&authenticator, &signed(&key, "k1", &claims)),
            Err(AuthFailure::Invalid),
            "without {claim}"
        );
    }
    // Signed by nobody, and by the public key taken for a shared secret.
    let parts: Vec<_> = signed(&key, "k1", &good).split('.').map(str::to_owned).collect();
    let none = base64url(br#"{"alg":"none","kid":"k1"}"#);
    assert_eq!(ask(&authenticator, &format!("{none}.{}.", parts[1])), Err(AuthFailure::Invalid));
    let mut header = Header::new(jsonwebtoken::Algorithm::HS256);
    header.kid = Some("k1".to_owned());
    let confused = encode(&header, &good, &EncodingKey::from_secret(b"public")).expect("signs");
    assert_eq!(ask(&authenticator, &confused), Err(AuthFailure::Invalid));
}

/// As Keycloak publishes them.
#[test]
fn keys_for_encryption_beside_those_for_signatures_are_left_out() {
    let (files, (key, jwk)) = (Files::new(), signer("k1"));
    let other = json!({"kty": "RSA", "use": "enc", "alg": "RSA-OAEP", "kid": "k2", "n": "AQAB", "e": "AQAB"});
    let jwks = files.write("jwks.json", &json!({ "keys": [other, jwk] }).to_string());
    let beside = authenticator(None, Some(jwks)).expect("opens");
    let claims = json!({"iss": "https://issuer/", "aud": "kvasir", "exp": 4_000_000_000_u64, "sub": "me",
        "tenant": "a", "role": "read"});
    assert_eq!(ask(&beside, &signed(&key, "k1", &claims)), Ok(("a".to_owned(), Role::Read)));
    assert_eq!(ask(&beside, &signed(&key, "k2", &claims)), Err(AuthFailure::Invalid));
    let alone = files.write("alone.json", &json!({ "keys": [other] }).to_string());
    let error = authenticator(None, Some(alone)).expect_err("no signature can be checked");
    assert!(error.contains("contains no key"), "{error}");
}

/// The audit log tells apart subjects that begin alike.
#[test]
fn a_web_tokens_subject_is_recorded_whole_within_its_limit() {
    let (files, (key, jwk)) = (Files::new(), signer("k1"));
    let jwks = files.write("jwks.json", &json!({ "keys": [jwk] }).to_string());
    let authenticator = authenticator(None, Some(jwks)).expect("opens");
    let recorded = |subject: &str| {
        let claims = json!({"iss": "https://issuer/", "aud": "kvasir", "exp": 4_000_000_000_u64, "sub": subject,
            "tenant": "a", "role": "read"});
        let mut headers = HeaderMap::new();
        let token = format!("Bearer {}", signed(&key, "k1", &claims));
        headers.insert(header::AUTHORIZATION, token.parse().expect("a value"));
        authenticator.authenticate(&headers, None).expect("sound").credential.to_string()
    };
    let account = "system:serviceaccount:production:engine-of-team-a";
    assert_eq!(recorded(account), account);
    assert_eq!(recorded("two\nlines"), "twolines");
    let most = crate::limits::CREDENTIAL_NAME_BYTES_MAX;
    assert_eq!(recorded(&"ä".repeat(most)), "ä".repeat(most / 2));
}

/// A token of these texts, as they are, with a sound signature.
fn signed_text(key: &EncodingKey, header: &str, claims: &str) -> String {
    let message = format!("{}.{}", base64url(header.as_bytes()), base64url(claims.as_bytes()));
    let algorithm = jsonwebtoken::Algorithm::EdDSA;
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), key, algorithm).expect("signs");
    format!("{message}.{signature}")
}

#[test]
fn a_web_token_with_critical_extensions_or_a_member_twice_is_refused() {
    let files = Files::new();
    let (key, jwk) = signer("k1");
    let jwks = files.write("jwks.json", &json!({ "keys": [jwk] }).to_string());
    let authenticator = authenticator(None, Some(jwks)).expect("opens");
    let header = r#"{"alg":"EdDSA","kid":"k1"}"#;
    let claims = r#"{"iss":"https://issuer/","aud":"kvasir","exp":4000000000,"tenant":"a","role":"read"}"#;
    let with =
        |text: &str, member: &str| format!("{},{member}}}", text.strip_suffix('}').expect("an object"));
    let ask = |header: &str, claims: &str| ask(&authenticator, &signed_text(&key, header, claims));
    assert_eq!(ask(header, claims), Ok(("a".to_owned(), Role::Read)));
    assert_eq!(
        ask(&with(header, r#""typ":"JWT""#), &with(claims, r#""nbf":1000000000"#)),
        Ok(("a".to_owned(), Role::Read))
    );
    for member in [r#""crit":["b64"],"b64":true"#, r#""crit":[]"#, r#""kid":"k1""#, r#""x":1,"x":1"#] {
        assert_eq!(ask(&with(header, member), claims), Err(AuthFailure::Invalid), "header {member}");
    }
    for member in [
        r#""tenant":"b""#,
        r#""role":"operator""#,
        r#""exp":4000000001"#,
        r#""aud":"kvasir""#,
        r#""x":1,"x":1"#,
    ] {
        assert_eq!(ask(header, &with(claims, member)), Err(AuthFailure::Invalid), "claim {member}");
    }
}

#[test]
fn guesses_are_rate_limited_and_known_tokens_are_not() {
    let files = Files::new();
    let known = token("a", Role::Read);
    let authenticator = authenticator(Some(files.write("t", &known.entry)), None).expect("opens");
    let peer = Some("192.0.2.1".parse().expect("ip"));
    let send = |credential: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, format!("Bearer {credential}").parse().expect("a value"));
        authenticator.authenticate(&headers, peer).err()
    };
    let guesses: Vec<_> = (0..5).map(|n| send(&format!("guess{n}"))).collect();
    let (invalid, limited) = (Some(AuthFailure::Invalid), Some(AuthFailure::RateLimited));
    assert_eq!(guesses, [invalid, invalid, invalid, limited, limited]);
    assert_eq!(send(&known.token), None);
}

/// Many callers share the address of a balancer.
#[test]
fn guesses_lock_out_no_web_token_that_was_valid_before() {
    let peer = Some("192.0.2.1".parse().expect("ip"));
    let (files, (key, jwk)) = (Files::new(), signer("k1"));
    let jwks = files.write("jwks.json", &json!({ "keys": [jwk] }).to_string());
    let authenticator = authenticator(None, Some(jwks)).expect("opens");
    let claims = json!({"iss": "https://issuer/", "aud": "kvasir", "exp": 4_000_000_000_u64, "sub": "me",
        "tenant": "team-a", "role": "write"});
    let token = signed(&key, "k1", &claims);
    let send = |credential: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, format!("Bearer {credential}").parse().expect("a value"));
        authenticator.authenticate(&headers, peer).err()
    };
    assert_eq!(send(&token), None);
    assert!((0..5).all(|n| send(&format!("guess{n}")).is_some()));
    assert_eq!((send("guess"), send(&token)), (Some(AuthFailure::RateLimited), None));
}

#[test]
fn a_page_of_another_address_uses_no_service_without_credentials() {
    let open = authenticator(None, None).expect("opens");
    let send = |headers: &[(header::HeaderName, &str)]| {
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().expect("a value")));
        open.authenticate(&headers.collect::<HeaderMap>(), None).err()
    };
    let host = (header::HOST, "127.0.0.1:7480");
    assert_eq!(send(std::slice::from_ref(&host)), None);
    assert_eq!(send(&[host.clone(), (header::ORIGIN, "http://127.0.0.1:7480")]), None);
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:7480.evil.example"]
    {
        assert_eq!(send(&[host.clone(), (header::ORIGIN, origin)]), Some(AuthFailure::OtherPage), "{origin}");
    }
}

#[test]
fn a_service_without_credentials_answers_to_loopback_alone_unless_more_may_reach_it() {
    let mut config = Config::default();
    let closed = Authenticator::open(&config).expect("opens");
    config.server.allow_unauthenticated = true;
    let open = Authenticator::open(&config).expect("opens");
    let send = |authenticator: &Authenticator, host: &str| {
        let headers = HeaderMap::from_iter([(header::HOST, host.parse().expect("a value"))]);
        authenticator.authenticate(&headers, None).err()
    };
    for host in
        ["localhost", "LOCALHOST:7480", "bucket.localhost:1", "127.0.0.1", "127.3.2.1:7480", "[::1]:7480"]
    {
        assert_eq!(send(&closed, host), None, "{host}");
    }
    let rebound = [
        "evil.example",
        "evil.example:7480",
        "localhost.evil.example",
        "10.0.0.1",
        "[::2]:1",
        "[::1",
        "",
        "::1",
    ];
    for host in rebound {
        assert_eq!(send(&closed, host), Some(AuthFailure::OtherHost), "{host}");
        assert_eq!(send(&open, host), None, "{host}");
    }
}

/// A damaged tenants file is taken or refused, and no refusal repeats a secret.
#[test]
fn damaged_tenants_files_never_panic_and_never_leak() {
    const SECRET: &str = "canarysecretcanarysecretcanarysecret";
    let token = token("team-a", Role::Write).entry;
    let key = format!(
        "[[access_key]]\nname = \"s3\"\ntenant = \"team-a\"\nrole = \"read\"\nid = \"KVABC\"\nsecret = \"{SECRET}\"\n"
    );
    let quota = "[tenant.team-a]\nrequests_per_second = 5\nstored_bytes = 1000\n";
    let (mut taken, mut refused) = (0, 0);
    crate::mutation::of(&[&token, &key, quota], 5_000, |text| match Tenants::parse(text) {
        Ok(_) => taken += 1,
        Err(problem) => {
            refused += 1;
            // More of it than a splice can carry elsewhere.
            assert!(!problem.contains("canarysecretcanary"), "{problem}");
        }
    });
    assert!(taken > 100 && refused > 500, "{taken} taken, {refused} refused");
}

/// Nothing but a token that its issuer signed lets anybody in.
#[test]
fn damaged_web_tokens_never_panic_and_never_pass() {
    let files = Files::new();
    let (key, jwk) = signer("k1");
    let jwks = files.write("jwks.json", &json!({ "keys": [jwk] }).to_string());
    let authenticator = authenticator(None, Some(jwks)).expect("opens");
    let claims = json!({"iss": "https://issuer/", "aud": "kvasir", "exp": 4_000_000_000_u64, "tenant": "a", "role": "read"});
    let sound = signed(&key, "k1", &claims);
    let none = base64url(br#"{"alg":"none","kid":"k1"}"#);
    crate::mutation::of(&[&sound, &none], 2_000, |text| {
        let Ok(text) = std::str::from_utf8(text) else { return };
        let passes = authenticator.is_in_force(&text.to_owned().into(), &principal("a"));
        assert!(!passes || text == sound, "{text}");
    });
}
