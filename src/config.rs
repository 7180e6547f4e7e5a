//! What a silo is configured with, and where that comes from: the builder, or a TOML file.
//!
//! Values are text and numbers here, as a user gives them; [`crate::silo`] checks them when the
//! silo starts. A key that nobody knows is an error that names it, since a misspelt key is a
//! setting that silently does not hold.

use core::time::Duration;

use crate::driver::certificates::Tls;
use crate::driver::idle::Idle;
use crate::pump::LinkMode;

/// Settings of a silo. What is `None` has a default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    pub(crate) cluster: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) bind: Option<String>,
    pub(crate) advertise: Option<String>,
    pub(crate) store: Option<String>,
    pub(crate) shards: Option<u16>,
    pub(crate) cpus: Option<Vec<usize>>,
    pub(crate) link: Option<LinkMode>,
    pub(crate) idle: Option<Idle>,
    pub(crate) secrets: Vec<Vec<u8>>,
    pub(crate) tls: Option<Tls>,
    pub(crate) danger_insecure_network: bool,
    pub(crate) deadline: Option<Duration>,
    pub(crate) idle_after: Option<Duration>,
    pub(crate) overload_delay: Option<Duration>,
}

/// Why a configuration file was not taken. Nothing was started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration {path} cannot be read ({detail}): correct the path or its rights")]
    Unreadable {
        /// Which file.
        path: String,
        /// What the system said.
        detail: String,
    },
    /// The file is no TOML.
    #[error("the configuration is no TOML: {detail}; correct it there")]
    Syntax {
        /// What and where.
        detail: String,
    },
    /// A key that no setting has.
    #[error("unknown key {key:?} in the configuration: remove it, or use one of {known}")]
    UnknownKey {
        /// The key.
        key: String,
        /// All keys there are.
        known: String,
    },
    /// A value that its key cannot have.
    #[error("{key} in the configuration is {found}: write {wanted}")]
    Value {
        /// The key.
        key: String,
        /// What was found.
        found: String,
        /// What is wanted.
        wanted: &'static str,
    },
}

#[cfg(feature = "config-file")]
mod file {
    use std::path::Path;

    use toml::{Table, Value};

    use super::{ConfigError, Duration, Idle, LinkMode, Settings, Tls};

    /// Every key, in the order of the documentation.
    const KEYS: [&str; 16] = [
        "cluster",
        "name",
        "bind",
        "advertise",
        "store",
        "shards",
        "cpus",
        "link",
        "idle",
        "spin_us",
        "secrets",
        "tls",
        "danger_insecure_network",
        "deadline_ms",
        "idle_after_ms",
        "overload_delay_us",
    ];

    impl Settings {
        /// Takes over what the file at `path` sets.
        pub(crate) fn read_file(&mut self, path: &Path) -> Result<(), ConfigError> {
            let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable {
                path: path.display().to_string(),
                detail: error.to_string(),
            })?;
            self.read_text(&text)
        }

        /// Takes over what `text` sets.
        pub(crate) fn read_text(&mut self, text: &str) -> Result<(), ConfigError> {
            let table: Table = text.parse().map_err(|error| not_toml(text, &error))?;
            let mut spin = None;
            for (key, value) in &table {
                let found = Found { key, value };
                match key.as_str() {
                    "cluster" => self.cluster = Some(found.text()?),
                    "name" => self.name = Some(found.text()?),
                    "bind" => self.bind = Some(found.text()?),
                    "advertise" => self.advertise = Some(found.text()?),
                    "store" => self.store = Some(found.text()?),
                    "shards" => self.shards = Some(found.number("a number from 1 to 512")?),
                    "cpus" => self.cpus = Some(found.numbers()?),
                    "link" => self.link = Some(found.link()?),
                    "idle" => self.idle = Some(found.idle()?),
                    "spin_us" => spin = Some(found.number("microseconds")?),
                    "secrets" => self.secrets = found.texts()?,
                    "tls" => self.tls = Some(found.tls()?),
                    "danger_insecure_network" => {
                        self.danger_insecure_network = found.truth()?;
                    }
                    "deadline_ms" => self.deadline = Some(found.millis()?),
                    "idle_after_ms" => self.idle_after = Some(found.millis()?),
                    "overload_delay_us" => {
                        let micros = found.number("microseconds")?;
                        self.overload_delay = Some(Duration::from_micros(micros));
                    }
                    _ => {
                        let known = KEYS.join(", ");
                        return Err(ConfigError::UnknownKey { key: key.clone(), known });
                    }
                }
            }
            if let Some(micros) = spin {
                self.idle = Some(Idle::Adaptive { max: Duration::from_micros(micros) });
            }
            Ok(())
        }
    }

    /// What is wrong and where, without the line itself: it may hold a secret.
    fn not_toml(text: &str, error: &toml::de::Error) -> ConfigError {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
        ConfigError::Syntax { detail: format!("line {line}: {}", error.message()) }
    }

    /// A key with its value.
    struct Found<'a> {
        key: &'a str,
        value: &'a Value,
    }

    impl Found<'_> {
        fn wrong(&self, wanted: &'static str) -> ConfigError {
            // A secret must not reach a log: neither one of ours, nor one in the URL of a store,
            // nor one that stands below another key.
            let found = if ["secrets", "store"].contains(&self.key) {
                "(hidden)".to_owned()
            } else if self.value.is_table() {
                "a table".to_owned()
            } else if self.value.is_array() {
                "a list".to_owned()
            } else {
                self.value.to_string()
            };
            ConfigError::Value { key: self.key.to_owned(), found, wanted }
        }

        fn text(&self) -> Result<String, ConfigError> {
            self.value.as_str().map(str::to_owned).ok_or_else(|| self.wrong("a text in quotes"))
        }

        fn truth(&self) -> Result<bool, ConfigError> {
            self.value.as_bool().ok_or_else(|| self.wrong("true or false"))
        }

        fn number<T: TryFrom<i64>>(&self, wanted: &'static str) -> Result<T, ConfigError> {
            let number = self.value.as_integer().and_then(|number| number.try_into().ok());
            number.ok_or_else(|| self.wrong(wanted))
        }

        fn millis(&self) -> Result<Duration, ConfigError> {
            Ok(Duration::from_millis(self.number("milliseconds")?))
        }

        fn numbers(&self) -> Result<Vec<usize>, ConfigError> {
            let list = self.value.as_array().and_then(|list| {
                list.iter().map(|entry| entry.as_integer()?.try_into().ok()).collect()
            });
            list.ok_or_else(|| self.wrong("a list of processor numbers"))
        }

        fn texts(&self) -> Result<Vec<Vec<u8>>, ConfigError> {
            let list = self.value.as_array().and_then(|list| {
                list.iter().map(|entry| Some(entry.as_str()?.as_bytes().to_vec())).collect()
            });
            list.ok_or_else(|| self.wrong("a list of texts in quotes"))
        }

        fn tls(&self) -> Result<Tls, ConfigError> {
            let wrong = || self.wrong("{ ca = \"…\", certificate = \"…\", key = \"…\" }, paths");
            let table = self.value.as_table().filter(|table| table.len() == 3);
            let table = table.ok_or_else(wrong)?;
            let path = |key: &str| {
                let text = table.get(key).and_then(Value::as_str);
                text.map(Into::into).ok_or_else(wrong)
            };
            Ok(Tls { ca: path("ca")?, certificate: path("certificate")?, key: path("key")? })
        }

        fn link(&self) -> Result<LinkMode, ConfigError> {
            match self.value.as_str() {
                Some("auto") => Ok(LinkMode::Auto),
                Some("tcp") => Ok(LinkMode::Tcp),
                Some("unix") => Ok(LinkMode::Unix),
                Some(_) | None => Err(self.wrong("\"auto\", \"tcp\" or \"unix\"")),
            }
        }

        fn idle(&self) -> Result<Idle, ConfigError> {
            match self.value.as_str() {
                Some("adaptive") => Ok(Idle::default()),
                Some("park") => Ok(Idle::Park),
                Some("spin") => Ok(Idle::Spin),
                Some(_) | None => Err(self.wrong("\"adaptive\", \"park\" or \"spin\"")),
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn read(text: &str) -> Result<Settings, ConfigError> {
            let mut settings = Settings::default();
            settings.read_text(text).map(|()| settings)
        }

        #[test]
        fn every_key_is_taken() {
            let text = r#"
                cluster = "demo"
                name = "pod-a"
                bind = "127.0.0.1:7000"
                advertise = "pod-a:7000"
                store = "sqlite:/tmp/demo.db"
                shards = 2
                cpus = [0, 1]
                link = "tcp"
                idle = "park"
                secrets = ["0123456789abcdef0123456789abcdef"]
                tls = { ca = "ca.pem", certificate = "pod-a.pem", key = "pod-a.key" }
                danger_insecure_network = true
                deadline_ms = 1500
                idle_after_ms = 60000
                overload_delay_us = 20000
            "#;
            let settings = read(text).unwrap();
            assert_eq!(settings.cluster.as_deref(), Some("demo"));
            assert_eq!((settings.shards, settings.link), (Some(2), Some(LinkMode::Tcp)));
            assert_eq!(settings.idle, Some(Idle::Park));
            assert_eq!(settings.cpus, Some(vec![0, 1]));
            assert_eq!(
                settings.tls.as_ref().map(|tls| tls.key.as_path()),
                Some("pod-a.key".as_ref())
            );
            assert_eq!(settings.deadline, Some(Duration::from_millis(1500)));
            assert_eq!(settings.overload_delay, Some(Duration::from_millis(20)));
            assert!(settings.danger_insecure_network && settings.secrets.len() == 1);
            let all = KEYS.iter().filter(|key| **key != "spin_us").all(|key| text.contains(key));
            assert!(all, "the test names every key");
        }

        #[test]
        fn an_unknown_key_is_named_with_the_known_ones() {
            let error = read("clutser = \"demo\"").unwrap_err();
            assert!(matches!(&error, ConfigError::UnknownKey { key, .. } if key == "clutser"));
            assert!(error.to_string().contains("cluster, name, bind"));
        }

        #[test]
        fn a_wrong_value_says_what_to_write_and_shows_no_secret() {
            let error = read("link = \"udp\"").unwrap_err().to_string();
            assert!(error.contains("link") && error.contains("\"unix\""), "{error}");
            let error = read("secrets = \"hush\"").unwrap_err().to_string();
            assert!(!error.contains("hush"), "{error}");
            for text in
                ["secrets = [\"hush\"]x", "[name]\nsecrets = \"hush\"", "store = [\"hush\"]"]
            {
                let error = read(text).unwrap_err();
                assert!(!format!("{error} {error:?}").contains("hush"), "{error}");
            }
            let error = read("name = \"a\"\nsecrets = [\"hush\"").unwrap_err().to_string();
            assert!(error.contains("line 2") && !error.contains("hush"), "{error}");
            let half =
                read("tls = { ca = \"ca.pem\", key = \"pod-a.key\", cert = \"x\" }").unwrap_err();
            assert!(half.to_string().contains("certificate = "), "{half}");
            assert!(matches!(read("shards = -1"), Err(ConfigError::Value { .. })));
            assert!(matches!(read("= 3"), Err(ConfigError::Syntax { .. })));
        }
    }
}
