//! Store URLs: the one setting that chooses a silo's store.
//!
//! `memory:`, `sqlite:PATH` or `postgres://…` (`postgresql://…`). Parsing is total: each text is a
//! [`StoreUrl`] or a typed [`UrlError`]. `Display` and `Debug` never show a password; what they
//! show is what logs and errors carry. Our own option `danger_async_commit=1` is taken out of the
//! query; the rest of a Postgres URL is the client's, and is checked by it. Deliberately absent:
//! key-value connection strings, environment variables, a default.

use core::fmt;
use core::str::FromStr;
use std::path::PathBuf;

/// Option that accepts losing acknowledged writes when the machine fails.
const ASYNC_COMMIT: &str = "danger_async_commit";
/// Shown in place of a password.
const HIDDEN: &str = "***";
/// Options of the Postgres client whose values are shown.
const SHOWN: &[&str] = &[
    ASYNC_COMMIT,
    "application_name",
    "connect_timeout",
    "dbname",
    "host",
    "hostaddr",
    "port",
    "sslmode",
    "target_session_attrs",
    "user",
];

/// Why a text is no store URL. Nothing was opened; the caller corrects the setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// The text starts with none of the known schemes.
    #[error("the store URL starts with {scheme:?}: use memory:, sqlite:PATH or postgres://HOST/DB")]
    UnknownScheme {
        /// What stands before the first colon, cut to 32 characters.
        scheme: String,
    },
    /// `memory:` with something behind it.
    #[error("memory: takes nothing behind the colon: use sqlite:PATH for a store in a file")]
    MemoryWithPath,
    /// `sqlite:` without a path, or with one that is no file.
    #[error("sqlite: needs the path of a file: sqlite:/var/lib/siloring.db")]
    SqliteWithoutPath,
    /// A control character in the URL.
    #[error("the store URL has a control character")]
    ControlCharacter,
    /// An option that the store does not have.
    #[error("the store URL has the unknown option {option:?}: leave it out")]
    UnknownOption {
        /// Its name.
        option: String,
    },
    /// An option with a value it cannot have.
    #[error("option {option:?} of the store URL must be {expected}")]
    OptionValue {
        /// Its name.
        option: &'static str,
        /// What it may be.
        expected: &'static str,
    },
    /// The Postgres client does not understand the URL.
    #[error("the Postgres URL is not understood ({detail}): use postgres://USER@HOST:PORT/DB")]
    Postgres {
        /// What the client says; it repeats no value.
        detail: String,
    },
    /// The URL demands TLS, which this build does not have.
    #[error("sslmode=require needs TLS, which is not built in: use a Unix socket or a tunnel")]
    TlsNotBuiltIn,
}

/// Whether an acknowledged write survives a failure of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Commit {
    /// It does.
    Durable,
    /// The last writes may be lost: `danger_async_commit=1`.
    DangerAsync,
}

/// A parsed store URL.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// `memory:`: a cluster of one, gone with its process.
    Memory,
    /// `sqlite:PATH`: the processes of one host.
    Sqlite(SqliteUrl),
    /// `postgres://…`: many hosts.
    Postgres(PostgresUrl),
}

/// Where an SQLite store is.
#[derive(Clone, PartialEq, Eq)]
pub struct SqliteUrl {
    path: PathBuf,
    commit: Commit,
    shown: String,
}

impl SqliteUrl {
    /// The file.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Whether acknowledged writes survive a failure of the machine.
    pub const fn commit(&self) -> Commit {
        self.commit
    }
}

/// Where a Postgres store is.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    /// For the client, credentials included.
    secret: String,
    commit: Commit,
    shown: String,
}

impl PostgresUrl {
    /// The client's configuration.
    pub(crate) fn config(&self) -> postgres::Config {
        self.secret.parse().expect("checked by parse")
    }

    /// Whether a server with `synchronous_commit = off` is accepted.
    pub const fn commit(&self) -> Commit {
        self.commit
    }
}

impl StoreUrl {
    /// Parses `text`.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        if text.chars().any(char::is_control) {
            return Err(UrlError::ControlCharacter);
        }
        let scheme = text.split_once(':').map_or(text, |(scheme, _)| scheme);
        match text.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("memory", _)) => Err(UrlError::MemoryWithPath),
            Some(("sqlite", rest)) => parse_sqlite(rest).map(Self::Sqlite),
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
                parse_postgres(scheme, rest.trim_start_matches("//")).map(Self::Postgres)
            }
            _ => Err(UrlError::UnknownScheme { scheme: scheme.chars().take(32).collect() }),
        }
    }
}

impl FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        Self::parse(text)
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => out.write_str("memory:"),
            Self::Sqlite(url) => fmt::Display::fmt(url, out),
            Self::Postgres(url) => fmt::Display::fmt(url, out),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

macro_rules! shown {
    ($($type:ident),+) => { $(
        impl fmt::Display for $type {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&self.shown)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&self.shown)
            }
        }
    )+ };
}

shown!(SqliteUrl, PostgresUrl);

fn parse_sqlite(rest: &str) -> Result<SqliteUrl, UrlError> {
    let (path, query) = split_query(rest);
    let (commit, others) = take_commit(query)?;
    if let Some(option) = others.first() {
        return Err(UrlError::UnknownOption { option: option_name(option) });
    }
    if path.is_empty() || path.ends_with('/') || path.starts_with(':') {
        return Err(UrlError::SqliteWithoutPath);
    }
    Ok(SqliteUrl { path: PathBuf::from(path), commit, shown: format!("sqlite:{rest}") })
}

fn parse_postgres(scheme: &str, rest: &str) -> Result<PostgresUrl, UrlError> {
    // As the client reads it: credentials end at the first '@', the query starts behind them.
    let (credentials, behind) = match rest.split_once('@') {
        Some((credentials, behind)) => (Some(credentials), behind),
        None => (None, rest),
    };
    let (place, query) = split_query(behind);
    let (commit, others) = take_commit(query)?;
    let login = credentials.map(|text| format!("{text}@")).unwrap_or_default();
    let secret = format!("{scheme}://{login}{place}{}", joined(&others));
    let config: postgres::Config = secret.parse().map_err(|error| not_understood(&error))?;
    if config.get_ssl_mode() == postgres::config::SslMode::Require {
        return Err(UrlError::TlsNotBuiltIn);
    }
    let user = credentials.map(hide_password).unwrap_or_default();
    let hidden: Vec<String> = query_parts(query).map(hide_option).collect();
    let shown = format!("{scheme}://{user}{place}{}", joined(&hidden));
    Ok(PostgresUrl { secret, commit, shown })
}

/// Our own option, and the options that are not ours.
fn take_commit(query: &str) -> Result<(Commit, Vec<String>), UrlError> {
    let mut commit = Commit::Durable;
    let mut others = Vec::new();
    for part in query_parts(query) {
        match part.split_once('=').unwrap_or((part, "")) {
            (ASYNC_COMMIT, "1") => commit = Commit::DangerAsync,
            (ASYNC_COMMIT, _) => {
                return Err(UrlError::OptionValue { option: ASYNC_COMMIT, expected: "1" });
            }
            _ => others.push(part.to_owned()),
        }
    }
    Ok((commit, others))
}

fn split_query(text: &str) -> (&str, &str) {
    text.split_once('?').unwrap_or((text, ""))
}

fn query_parts(query: &str) -> impl Iterator<Item = &str> {
    query.split('&').filter(|part| !part.is_empty())
}

fn joined(parts: &[String]) -> String {
    if parts.is_empty() { String::new() } else { format!("?{}", parts.join("&")) }
}

fn option_name(part: &str) -> String {
    part.split('=').next().unwrap_or_default().to_owned()
}

fn hide_password(credentials: &str) -> String {
    match credentials.split_once(':') {
        Some((user, _)) => format!("{user}:{HIDDEN}@"),
        None => format!("{credentials}@"),
    }
}

/// Values of other options are hidden: the client decodes names, so that a password has many.
fn hide_option(part: &str) -> String {
    let name = option_name(part);
    if SHOWN.contains(&name.as_str()) { part.to_owned() } else { format!("{name}={HIDDEN}") }
}

fn not_understood(error: &postgres::Error) -> UrlError {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    UrlError::Postgres { detail: cause.unwrap_or_else(|| error.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scheme_parses_to_its_store() {
        assert_eq!(StoreUrl::parse("memory:"), Ok(StoreUrl::Memory));
        let Ok(StoreUrl::Sqlite(url)) = StoreUrl::parse("sqlite:/tmp/a b.db") else { panic!() };
        assert_eq!((url.path().to_str(), url.commit()), (Some("/tmp/a b.db"), Commit::Durable));
        for text in ["postgres://u:p@h:1/d", "postgresql:///d?host=/tmp/x&user=u"] {
            assert!(matches!(StoreUrl::parse(text), Ok(StoreUrl::Postgres(_))), "{text}");
        }
    }

    #[test]
    fn no_form_of_a_url_shows_its_password() {
        for text in [
            "postgres://ada:s3cret@db.example/app",
            "postgres:///app?host=/run&user=ada&password=s3cret",
            "postgres:///app?host=/run&user=ada&pass%77ord=s3cret",
        ] {
            let url = StoreUrl::parse(text).unwrap();
            let shown = format!("{url} {url:?}");
            assert!(!shown.contains("s3cret"), "{shown}");
            assert!(shown.contains("ada") && shown.contains("app"), "{shown}");
        }
    }

    #[test]
    fn the_danger_option_is_ours_and_not_the_clients() {
        let url = StoreUrl::parse("postgres://h/d?danger_async_commit=1&application_name=x");
        let Ok(StoreUrl::Postgres(url)) = url else { panic!("{url:?}") };
        assert_eq!(url.commit(), Commit::DangerAsync);
        assert_eq!(url.config().get_application_name(), Some("x"));
        let expected = UrlError::OptionValue { option: "danger_async_commit", expected: "1" };
        assert_eq!(StoreUrl::parse("sqlite:x?danger_async_commit=yes"), Err(expected));
    }

    #[test]
    fn a_wrong_url_names_what_is_wrong() {
        let unknown = UrlError::UnknownScheme { scheme: "mysql".into() };
        assert_eq!(StoreUrl::parse("mysql://h/d"), Err(unknown));
        assert_eq!(StoreUrl::parse("memory:x"), Err(UrlError::MemoryWithPath));
        for text in ["sqlite:", "sqlite::memory:", "sqlite:/tmp/", "sqlite:?x=1"] {
            assert!(StoreUrl::parse(text).is_err(), "{text}");
        }
        let option = UrlError::UnknownOption { option: "mode".into() };
        assert_eq!(StoreUrl::parse("sqlite:x?mode=ro"), Err(option));
        let tls = StoreUrl::parse("postgres://h/d?sslmode=require");
        assert_eq!(tls, Err(UrlError::TlsNotBuiltIn));
        let bad = StoreUrl::parse("postgres://h/d?port=s3cret").unwrap_err().to_string();
        assert!(bad.contains("port") && !bad.contains("s3cret"), "{bad}");
        assert_eq!(StoreUrl::parse("sqlite:a\nb"), Err(UrlError::ControlCharacter));
    }
}
